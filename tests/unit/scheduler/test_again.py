"""Pools that are planned on from an earlier plan, one promise each."""

from dataclasses import replace

import pytest

from plait.errors import UnavailableError
from plait.types import LayerSpan, ModelId, NodeId
from scheduler.allocation.moves import moved
from scheduler.allocation.problem import Placement
from scheduler.planning.again import PlannedAgain, plan_again
from scheduler.planning.check import pool_violations
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import PoolPlan, plan_pool
from scheduler.planning.repair import Standing, repair_pool
from tests.unit.scheduler.pools import node, problem, tiny_model
from tests.unit.scheduler.test_repair import ground_of, joined, stand, without


def again(ground: Ground, standing: Standing) -> PlannedAgain:
    found = plan_again(ground, standing, Wish(), plan_pool)
    assert pool_violations(ground, found.plan) == []
    return found


def test_nothing_moves_and_nothing_is_read_where_nothing_happened() -> None:
    ground = ground_of()
    found = again(ground, stand(ground))
    assert (found.moves, found.read_bytes) == ((), ())


def test_newcomers_by_the_dozen_make_chains_of_their_own_and_move_nobody() -> None:
    ground = ground_of()
    standing = stand(ground)
    more = ground
    for number, machine in enumerate(ground.machines * 2):
        more = joined(more, machine.node_id, f"new{number}")
    found = again(more, standing)
    assert found.num_survivors_moved == 0
    assert all(move.before is None for move in found.moves)
    alone = repair_pool(more, standing).plan
    assert len(found.plan.chains) > len(alone.chains)
    assert found.plan.rate_per_s > alone.rate_per_s


def test_what_is_read_is_what_the_repair_says_where_no_chain_is_added() -> None:
    ground = ground_of()
    standing = stand(ground)
    for lost in [standing.chains[0][0][0], standing.chains[-1][-1][0]]:
        after = without(ground, lost)
        repaired = repair_pool(after, standing)

        def nothing(ground: Ground, wish: Wish) -> PoolPlan:
            raise UnavailableError("none", reason="not_enough_memory")

        found = plan_again(after, standing, Wish(), nothing)
        assert found.plan.chains == repaired.plan.chains
        assert found.moves == repaired.moves
        assert sum(found.read_bytes) == pytest.approx(repaired.moved_bytes)
        assert lost not in {move.node_id for move in found.moves}


def test_a_machine_that_shrank_gives_up_what_it_can_hold_no_more() -> None:
    ground = ground_of()
    standing = stand(ground)
    small = standing.chains[0][0][0]
    machines = tuple(
        replace(m, room_bytes=m.room_bytes / 3) if m.node_id == small else m
        for m in ground.machines
    )
    found = again(replace(ground, machines=machines), standing)
    assert small in {move.node_id for move in found.moves}


def test_one_matrix_at_both_ends_is_read_once() -> None:
    spec = tiny_model()
    asked = problem(node("a", memory_mib=2_000))
    whole = Placement(node_id=NodeId("a"), model_id=ModelId("tiny"), span=LayerSpan(0, 30))
    assert spec.tie_embeddings
    read = moved(asked, (whole,)).num_bytes
    dtype = asked.nodes[0].compute_dtype
    norm = spec.hidden_size * dtype.num_bytes
    assert read == spec.weight_bytes(spec.whole, dtype) - norm
    end = replace(whole, span=LayerSpan(1, 30))
    layers = 29 * spec.layer_bytes(dtype)
    assert moved(asked, (end,)).num_bytes == layers + spec.embedding_bytes(dtype)
