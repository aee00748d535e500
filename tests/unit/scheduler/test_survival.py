"""Nodes that come and go are worth less, to chains, ends and spares."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.types import LayerSpan, NodeId
from scheduler.allocation import allocate_greedy, violations
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.spare import replicate
from scheduler.curve import StageCurve
from scheduler.planning.explain import reasons
from scheduler.planning.ground import Ground, Machine, Replica, Wish, replica_figures
from scheduler.planning.pool import plan_pool
from scheduler.planning.price import price
from scheduler.planning.table import make_table
from scheduler.survival import PRIOR_SESSION_S, REPAIR_S, loss, mean_session_s, up_share
from tests.unit.scheduler.pools import node, problem, tiny_model

HOUR = 3600.0


def ground_of(*losses: float) -> Ground:
    """Machines alike but for how they come and go, two layers each of four."""
    machines = tuple(
        Machine(
            node_id=f"m{i}",
            kind=f"up {loss_of:.2f}",
            region=0,
            last_mile_s=0.001,
            up_bytes_per_s=1e6,
            down_bytes_per_s=1e6,
            room_bytes=2.0,
            kv_bytes=20.0,
            layer_bytes=1.0,
            kv_sequence_bytes=1.0,
            first_bytes=0.0,
            last_bytes=0.0,
            both_bytes=0.0,
            curve=StageCurve(
                overhead_s=0.002,
                compute_s=0.0001,
                read_s=0.004,
                kv_s=0.0,
                head_compute_s=0.0,
                head_read_s=0.001,
            ),
            loss=loss_of,
        )
        for i, loss_of in enumerate(losses)
    )
    return Ground(
        num_layers=4,
        activation_bytes=1_000.0,
        regions=("eu",),
        region_rtt_s=((0.008,),),
        machines=machines,
    )


@given(st.lists(st.floats(0.0, 1e7), max_size=20), st.floats(0.0, 1e7))
def test_the_expected_session_moves_from_the_prior_to_what_was_seen(
    ended_s: list[float], now_s: float
) -> None:
    mean_s = mean_session_s(ended_s, now_s=now_s)
    naive = (PRIOR_SESSION_S + sum(ended_s) + now_s) / (len(ended_s) + 1)
    assert mean_s == pytest.approx(max(60.0, naive))
    assert mean_session_s([*ended_s, 0.0], now_s=now_s) <= mean_s
    assert mean_session_s([60.0] * 2000) == pytest.approx(60.0, rel=0.8)


def test_a_chain_counts_for_the_time_that_all_of_it_is_there() -> None:
    two = loss(HOUR) + loss(2 * HOUR)
    assert up_share(two) == pytest.approx(1 / (1 + REPAIR_S / HOUR + REPAIR_S / (2 * HOUR)))
    assert loss(None) == loss(float("nan")) == 0.0 and up_share(0.0) == 1.0


def test_live_plans_leave_flaky_nodes_out_and_keep_them_off_the_ends() -> None:
    nodes = [node(name, memory_mib=2_000) for name in ("a", "b", "c")]
    asked = replace(
        problem(*nodes),
        mean_session_s=((NodeId("a"), 120.0), (NodeId("b"), 1e6), (NodeId("c"), 1e6)),
    )
    planner = ChainPlanner(asked, asked.models[0])
    whole = planner.spec.whole
    alone = [planner.evaluate([(NodeId(n), whole)]).tokens_per_s for n in ("a", "b")]
    assert alone[0] == pytest.approx(alone[1] * up_share(loss(120.0)), rel=1e-3)
    chain = planner.best([NodeId(n) for n in ("a", "b", "c")], whole)
    assert chain is not None and chain.node_ids[1] == "a"
    plan = allocate_greedy(asked)
    assert not violations(asked, plan)
    assert "its nodes come and go" in next(p.reason for p in plan.placements if p.node_id == "a")


def test_spans_of_flaky_nodes_are_doubled_first() -> None:
    asked = replace(
        problem(*(node(n) for n in ("a", "b", "spare"))), mean_session_s=((NodeId("b"), 120.0),)
    )
    planner = ChainPlanner(asked, tiny_model())
    held = {NodeId("a"): LayerSpan(0, 15), NodeId("b"): LayerSpan(15, 30)}
    assert replicate(planner, held, [NodeId("spare")]) == {NodeId("spare"): LayerSpan(15, 30)}
    steady = ChainPlanner(problem(*asked.nodes), tiny_model())
    slow_first = {NodeId("a"): LayerSpan(0, 15), NodeId("b"): LayerSpan(15, 26)}
    assert replicate(steady, slow_first, [NodeId("spare")]) == {NodeId("spare"): LayerSpan(0, 15)}


def test_arrays_and_the_plain_figures_agree_on_flaky_machines() -> None:
    ground = ground_of(0.0, 0.4, 0.1)
    table = make_table(ground)
    priced = price(table, np.array([[0, 1, 2]]), halvings=40)
    counts = tuple(int(k) for k in priced.counts[0])
    plain = replica_figures(ground, Replica(tuple(zip((0, 1, 2), counts, strict=True))))
    assert priced.rate[0] == pytest.approx(plain.rate_per_s, rel=1e-6)
    steady = ground_of(0.0, 0.0, 0.0)
    best = replica_figures(steady, Replica(tuple(zip((0, 1, 2), counts, strict=True))))
    assert plain.rate_per_s == pytest.approx(best.rate_per_s / 1.5)


def test_pool_plans_take_the_steady_of_two_alike() -> None:
    ground = ground_of(0.5, 0.0, 0.0)
    plan = plan_pool(ground, Wish(time_limit_s=2.0))
    assert [set(chain.members) for chain in plan.chains] == [{1, 2}]
    told = dict(reasons(ground_of(0.5, 0.1), plan_pool(ground_of(0.5, 0.1), Wish())))
    assert "stays about 0.2 h" in told["m0"] and "count 62.5 %" in told["m0"]
