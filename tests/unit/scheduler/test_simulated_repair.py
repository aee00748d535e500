"""Chains that lose a member in the simulator are repaired as `repair_pool` does."""

from plait.types import LayerSpan
from scheduler.simulation.pool import nominal_pool
from scheduler.simulation.pool_planner import pool_planner
from scheduler.simulation.pool_repair import PoolRepair
from scheduler.simulation.state import Pipeline
from tests.unit.scheduler.grounds import draw_ground

POOL = nominal_pool(draw_ground(6, 12))
NODES = range(12)


def spans(pipelines: list[Pipeline]) -> dict[int, LayerSpan]:
    return {i: span for p in pipelines for i, span in p}


def test_survivors_and_donors_make_whole_chains_and_busy_nodes_stay() -> None:
    before = pool_planner(POOL, NODES)
    lost, busy = before[0][0][0], {i for i, _ in before[-1]}
    up = [i for i in NODES if i != lost]
    assert len(before) > 1 and lost not in busy
    after = PoolRepair(POOL)(before, up=up, busy=busy, held=spans(before), now_s=10.0)
    for pipeline in after:
        edges = [0, *(span.end for _, span in pipeline)]
        assert [span.start for _, span in pipeline] == edges[:-1]
        assert edges[-1] == POOL.ground.num_layers
    assert {i for p in after for i, _ in p} <= set(up)
    assert {i: s for i, s in spans(after).items() if i in busy} == {
        i: s for i, s in spans(before).items() if i in busy
    }
    assert sum(len(p) for p in after) >= sum(len(p) for p in before[1:])


def test_nobody_left_is_nothing_to_repair() -> None:
    assert PoolRepair(POOL)([], up=[], busy=[], held={}, now_s=0.0) == []
