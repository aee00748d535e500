"""Phase 1 for the simulator: what `plait plan` plans."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from plait.errors import UnavailableError
from plait.types import LayerSpan
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import EXHAUSTIVE_MACHINES_MAX, PoolPlan, plan_pool
from scheduler.simulation.pool import Pool
from scheduler.simulation.report import GOOD_TPOT_S
from scheduler.simulation.state import Pipeline

PlanPool = Callable[[Ground, Wish], PoolPlan]


def pool_planner(
    pool: Pool, members: Sequence[int], *, plan: PlanPool = plan_pool
) -> list[Pipeline]:
    """Chains over some of the machines; empty where they cannot hold the model. `plan` is asked
    where a solver takes part."""
    asked = plan if len(members) > EXHAUSTIVE_MACHINES_MAX else plan_pool
    ground = replace(pool.ground, machines=tuple(pool.ground.machines[i] for i in members))
    for wish in (Wish(tpot_s_max=GOOD_TPOT_S), Wish()):
        try:
            found = asked(ground, wish)
        except UnavailableError:
            continue
        return [_pipeline(members, c.members, c.counts) for c in found.chains]
    return []


def _pipeline(members: Sequence[int], chosen: Sequence[int], counts: Sequence[int]) -> Pipeline:
    stages: list[tuple[int, LayerSpan]] = []
    at = 0
    for i, count in zip(chosen, counts, strict=True):
        stages.append((members[i], LayerSpan(at, at + count)))
        at += count
    return tuple(stages)
