"""Chains for a large pool of live nodes: chosen by the planner of whole pools, then split and
rated here with what was measured between these very nodes."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from plait.errors import UnavailableError
from plait.types import KvDtype, ModelId, NodeId
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.classes import regions
from scheduler.cost import BATCH_MAX
from scheduler.planning.ground import Ground, Machine, Wish
from scheduler.planning.measured import measured_machine
from scheduler.planning.pool import plan_pool

BUCKET_STEP: Final = 1.15
BUCKET_STEP_LARGE: Final = 1.35
LARGE_NODES: Final = 128
"""Above this many nodes kinds are coarser, so that a plan stays a matter of seconds."""
PAIRS_MAX: Final = 64
THOROUGH_STAGES_MAX: Final = 6


class PlannedChooser:
    """A ChainChooser for one model over many nodes; `solver` and `status` say how it went."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self.solver = "greedy"
        self.status = "feasible"
        self.warnings: tuple[str, ...] = ()

    def __call__(
        self, planners: Sequence[ChainPlanner], free: Sequence[NodeId], must: frozenset[ModelId]
    ) -> list[tuple[ChainPlanner, Chain]]:
        """Chains of the first planner's model; none where the planner finds none."""
        planner = planners[0]
        if not free:
            return []
        ground = ground_of(planner, free)
        try:
            plan = plan_pool(ground, Wish(time_limit_s=self._time_limit_s))
        except UnavailableError:
            return []
        except Exception as error:  # numpy and a solver: whatever they do, other plans are there
            self.warnings = (f"planned without the pool's planner: {error}",)
            return []
        self.solver, self.status, self.warnings = plan.solver, plan.status, plan.warnings
        chosen: list[tuple[ChainPlanner, Chain]] = []
        for replica in plan.chains:
            node_ids = [NodeId(ground.machines[i].node_id) for i in replica.members]
            is_short = len(node_ids) <= THOROUGH_STAGES_MAX
            chain = planner.best(node_ids, planner.spec.whole, is_thorough=is_short)
            if chain is not None and chain.score > 0.0:
                chosen.append((planner, chain))
        return chosen


def ground_of(planner: ChainPlanner, node_ids: Sequence[NodeId]) -> Ground:
    """Live nodes as the planner of pools sees them: regions by measured round trips (their
    median), kinds by measured speed and memory, memory as the node reckons it."""
    by_node = regions(planner, node_ids)
    step = BUCKET_STEP if len(node_ids) <= LARGE_NODES else BUCKET_STEP_LARGE
    names = sorted(set(by_node.values()))
    members = {name: [n for n in sorted(node_ids) if by_node[n] == name] for name in names}
    return Ground(
        num_layers=planner.spec.num_layers,
        activation_bytes=float(planner.hop_bytes),
        regions=tuple(f"region {name}" for name in names),
        region_rtt_s=tuple(
            tuple(_median_rtt_s(planner, members[a], members[b]) for b in names) for a in names
        ),
        machines=tuple(
            _machine(planner, n, names.index(by_node[n]), step) for n in sorted(node_ids)
        ),
        batch_max=BATCH_MAX,
    )


def _median_rtt_s(planner: ChainPlanner, one: Sequence[NodeId], other: Sequence[NodeId]) -> float:
    pairs = ((a, b) for a, b in itertools.product(one, other) if a != b)
    trips = [planner.links.rtt_ms(a, b) for a, b in itertools.islice(pairs, PAIRS_MAX)]
    return statistics.median(trips) / 1e3 if trips else 0.0


def _machine(planner: ChainPlanner, node_id: NodeId, region: int, step: float) -> Machine:
    profile, cost = planner.profiles[node_id], planner.costs[node_id]
    if planner.spec.model_id in profile.refused_models:
        profile = replace(profile, memory_bytes=0)
    speed = math.floor(math.log(cost.layer_ms) / math.log(step))
    size = math.floor(math.log(max(1, profile.memory_bytes)) / math.log(step))
    kept = "" if profile.kv_dtype is KvDtype.NATIVE else f"KV {profile.kv_dtype}, "
    memory, layer_ms = f"{step**size / 2**30:.2f} GiB", f"{step**speed:.2g} ms a layer"
    return measured_machine(
        profile,
        planner.spec,
        cost,
        kind=f"{profile.compute_dtype}, {kept}{memory}, {layer_ms}",
        region=region,
        sequence_tokens=planner.sequence_tokens,
        loss=planner.losses.get(node_id, 0.0),
    )
