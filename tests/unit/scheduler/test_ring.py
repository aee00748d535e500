"""Rings over links that are measured differently each way."""

from random import Random

from scheduler.allocation.chain import ChainPlanner
from tests.unit.scheduler.pools import node, problem, tiny_model


def test_two_opt_ends_where_round_trips_differ_by_direction() -> None:
    """Found by seed 13 of `tests.sim.seeds`: parts of a ring were turned round for ever."""
    spec = tiny_model(8)
    for seed in range(8):
        rng = Random(seed)
        for num_nodes in (6, 8):
            nodes = [node(f"n{i}", rtt_ms=rng.uniform(1, 40)) for i in range(num_nodes)]
            ids = [each.node_id for each in nodes]
            rtt_ms = {(str(a), str(b)): rng.uniform(0.5, 40) for a in ids for b in ids if a != b}
            planner = ChainPlanner(problem(*nodes, models=(spec,), rtt_ms=rtt_ms), spec)
            chain = planner.best(ids, spec.whole)
            assert chain is not None
            assert set(chain.node_ids) == set(ids)
