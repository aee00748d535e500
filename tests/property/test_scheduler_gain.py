"""A replica is opened for a gain only where nothing that is checked afterwards is lower."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.errors import UnavailableError
from plait.types import NodeProfile
from scheduler.allocation import Allocation, AllocationProblem, allocate_greedy
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.stitch import stitch
from tests.unit.scheduler.pools import node, problem, tiny_model

SPEC = tiny_model(12)
LAYER_MS = (0.5, 1.0, 3.0)


def draw_node(name: str, rng: Random) -> NodeProfile:
    """Of any size and speed, near or far."""
    return node(
        name,
        memory_mib=rng.randint(90, 300),
        layer_ms=rng.choice(LAYER_MS),
        rtt_ms=rng.choice((1.0, 20.0, 150.0)),
    )


def draw_standing(seed: int) -> AllocationProblem | None:
    """A pool whose plan stands; then a node is slower than it was, or another one joined."""
    rng = Random(seed)
    nodes = [draw_node(f"n{i}", rng) for i in range(rng.randint(4, 9))]
    pool = problem(*nodes, models=(SPEC,), kv_tokens_min=64)
    try:
        before = allocate_greedy(pool)
    except UnavailableError:
        return None
    slow = rng.choice(before.placements).node_id
    slower = node("slow", layer_ms=3.0 * rng.choice((1.0, 10.0))).timings
    nodes = [replace(p, timings=slower) if p.node_id == slow else p for p in nodes]
    if rng.random() < 0.5:
        nodes.append(draw_node("new", rng))
    return replace(pool, nodes=tuple(nodes), held=before.placements, is_repair=True)


def carried(pool: AllocationProblem, plan: Allocation) -> float:
    """Tokens/s of the chains that the plan's spans make when they are stitched anew."""
    spans = {p.node_id: p.span for p in plan.placements}
    return sum(rate.tokens_per_s for _, rate in stitch(ChainPlanner(pool, SPEC), spans))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
@example(0)
@example(58)
def test_a_gain_lowers_neither_what_is_promised_nor_what_is_checked(seed: int) -> None:
    pool = draw_standing(seed)
    if pool is None:
        return
    # Nobody may move: what stands, with newcomers beside it.
    kept = allocate_greedy(replace(pool, fixed=tuple(p.node_id for p in pool.held)))
    plan = allocate_greedy(pool)
    assert plan.objective_tokens_per_s >= kept.objective_tokens_per_s * (1 - 1e-9)
    assert carried(pool, plan) >= carried(pool, kept) * (1 - 1e-9)
