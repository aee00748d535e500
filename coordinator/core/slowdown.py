"""Nodes that are not what plans took them for: when that calls for another plan, and for which."""

from typing import Final

from coordinator.core.planning import ask_plan, replan_asked
from coordinator.core.question import is_placed
from coordinator.core.state import CoreState, NodeRecord
from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.problem import AllocationProblem
from scheduler.calibration import calibrated
from scheduler.cost import stage_cost
from scheduler.handover import handed_over

CHAIN_SHARE_MIN: Final = 0.85
"""Below this part of what was planned, a chain is planned anew."""


def departed(state: CoreState, node: NodeRecord) -> None:
    """A node has long been quicker or slower than plans believe. One that holds up its chain gives
    cause for a repair, again and again until it was idle when one was made: meanwhile routes shun
    it by its price. Moves follow each other only so often."""
    planning = state.planning
    since_ms = planning.moved_ms
    if since_ms is not None and since_ms + state.limits.repair_interval_ms > state.now_ms:
        return
    if not node.calibration.is_slower:
        replan_asked(state)
    elif chain_share(state, node) < CHAIN_SHARE_MIN:
        planning.wants_repair = True
        ask_plan(state)


def chain_share(state: CoreState, node: NodeRecord) -> float:
    """What the node's planned chain carries now, against what plans believed of its members when
    they could last move them; 1 where it is in none."""
    if node.model_id is None:
        return 1.0
    chain = _members(state, node)
    if not chain:
        return 1.0
    now, then = _score(state, chain, is_now=True), _score(state, chain, is_now=False)
    return now / then if then > 0.0 else 1.0


def _members(state: CoreState, node: NodeRecord) -> list[NodeRecord]:
    """Of the planned chain with the node, as far as they hold what was planned."""
    plan = state.planning.in_force
    pipelines = plan.pipelines if plan is not None else ()
    names = next((p for p in pipelines if node.node_id in p), (node.node_id,))
    members = [state.nodes[n] for n in names if n in state.nodes]
    same = [n for n in members if is_placed(n) and n.model_id == node.model_id]
    return same if len(same) == len(names) else [node]


def _score(state: CoreState, chain: list[NodeRecord], *, is_now: bool) -> float:
    assert chain[0].model_id is not None
    spec = state.models[chain[0].model_id]
    known = {n.node_id for n in chain}
    problem = AllocationProblem(
        models=(spec,),
        nodes=tuple(n.profile for n in chain if n.profile is not None),
        kv_tokens_min=state.limits.kv_tokens_min,
        wire_dtype=state.wire_dtype,
        rtt_ms=tuple(
            (pair, ms) for pair, ms in state.links.measured().items() if known.issuperset(pair)
        ),
    )
    planner = ChainPlanner(problem, spec)
    held: dict[NodeId, LayerSpan] = {}
    for node in chain:
        assert node.profile is not None and node.span is not None
        factors = node.calibration.factors if is_now else node.calibration.accepted
        planner.costs[node.node_id] = calibrated(stage_cost(node.profile, spec), factors)
        held[node.node_id] = node.span
    spans = list(held.values())
    stages = list(zip(held, handed_over(spans, spec.num_layers) or spans, strict=True))
    return Chain(tuple(stages), planner.evaluate(stages, held=held)).score
