"""What an operator is told where memory lacks."""

from dataclasses import replace

import pytest

from plait.types import DType, LayerSpan, ModelId, NodeId
from scheduler.allocation import AllocationProblem, Placement, allocate, allocate_greedy
from scheduler.allocation.fit import Room, ends_fit
from scheduler.allocation.remedy import NODES_MAX, explained, shortages
from scheduler.allocation.shortage import MIB, Shortage, gap_shortage, gib, printable_down
from tests.unit.scheduler.pools import node, problem, tiny_model

TINY, SMALL = ModelId("tiny"), ModelId("small")


def lack(pool: AllocationProblem) -> Shortage:
    (found,) = shortages(pool, None)
    return found


def test_one_small_node_needs_as_many_more_as_are_told() -> None:
    for kv_tokens in (1_024, 2_048):
        first = node("a", memory_mib=200)
        pool = problem(first, kv_tokens_min=kv_tokens)
        said = lack(pool)
        assert said.missing == (LayerSpan(0, 30),) and said.num_nodes is not None
        more = [replace(first, node_id=NodeId(f"b{i}")) for i in range(said.num_nodes)]
        allocate(replace(pool, nodes=(first, *more)))
        assert lack(replace(pool, nodes=(first, *more[:-1]))).num_nodes is None
        assert said.advice == (
            f"Join {said.num_nodes} more nodes of 200 MiB each, or one with at least "
            f"{gib(said.short_bytes)}."
        )


def test_what_is_told_shrinks_with_every_node_that_comes() -> None:
    nodes = [node("n0", memory_mib=200)]
    told = [lack(problem(*nodes, kv_tokens_min=2_048))]
    while told[-1].num_nodes is not None:
        nodes.append(node(f"n{len(nodes)}", memory_mib=200))
        told.append(lack(problem(*nodes, kv_tokens_min=2_048)))
    counts = [said.num_nodes for said in told]
    assert counts == [*range(len(told), 1, -1), None]
    assert told[-1].advice.startswith("Join a node with at least")
    assert told[-1].one_node_bytes is not None and told[-1].one_node_bytes <= 200 * MIB


def test_a_plan_that_fails_is_explained_with_what_helps() -> None:
    pool = problem(node("a", memory_mib=200))
    said = lack(pool)
    assert explained(pool) == (
        f"Not enough memory for tiny: layers 0-29 of 30 have no node, {gib(said.short_bytes)} are "
        f"missing. {said.advice}"
    )


def test_nobody_is_there() -> None:
    said = lack(problem())
    assert said.advice == f"Join a node with at least {gib(said.short_bytes)}."
    allocate_greedy(problem(node("a", memory_mib=said.short_bytes / MIB)))


def test_nodes_too_small_for_the_embedding_are_told_of_larger_ones() -> None:
    said = lack(problem(*(node(f"n{i}", memory_mib=90) for i in range(8))))
    assert said.node_bytes is not None and said.node_bytes > 90 * MIB
    assert said.node_bytes == printable_down(said.node_bytes)


def test_a_lost_holder_is_named_by_its_layers_and_replaced_by_one_node() -> None:
    three = problem(*(node(name, memory_mib=300) for name in ("a", "b", "c")))
    first, *rest = allocate_greedy(three).placements
    left = replace(
        three, nodes=tuple(n for n in three.nodes if n.node_id != first.node_id), held=tuple(rest)
    )
    said = lack(left)
    assert said.missing == (first.span,) and said.num_nodes is None
    assert said.one_node_bytes is not None and said.one_node_bytes <= 300 * MIB


def test_a_model_that_a_plan_leaves_out_is_told_of_and_one_that_it_serves_is_not() -> None:
    models = (tiny_model(), tiny_model(12, model_id="small"))
    pool = problem(node("a", memory_mib=450, layer_ms=None), models=models)
    plan = allocate_greedy(pool)
    (said,) = shortages(pool, plan)
    assert said.model_id == TINY and {p.model_id for p in plan.placements} == {SMALL}
    assert said.one_node_bytes is not None
    more = node("b", memory_mib=said.one_node_bytes / MIB, layer_ms=None)
    both = allocate_greedy(replace(pool, nodes=(*pool.nodes, more), held=plan.placements))
    assert {p.model_id for p in both.placements} == {TINY, SMALL}
    assert shortages(replace(pool, nodes=(*pool.nodes, more)), both) == ()


@pytest.mark.parametrize(
    ("num_nodes", "num_layers"),
    [(NODES_MAX + 16, 24), pytest.param(6 * NODES_MAX, 126, marks=pytest.mark.slow)],
)
def test_a_large_pool_is_asked_about_in_part_and_the_advice_still_holds(
    num_nodes: int, num_layers: int
) -> None:
    nodes = [node(f"n{i:03d}", memory_mib=60 + i % 40) for i in range(num_nodes)]
    pool = problem(*nodes, models=(tiny_model(num_layers),))
    said = lack(pool)
    assert said.num_nodes is not None and said.node_bytes is not None
    size_mib = said.node_bytes / MIB
    more = [node(f"z{i}", memory_mib=size_mib) for i in range(said.num_nodes)]
    assert allocate_greedy(replace(pool, nodes=(*nodes, *more))).placements


def test_a_pool_of_holders_is_thinned_to_who_covers_what_is_covered() -> None:
    spec = tiny_model(126)
    holders = [node(f"n{i:03d}", memory_mib=120) for i in range(2 * NODES_MAX)]
    held = tuple(
        Placement(
            node_id=p.node_id, model_id=TINY, span=LayerSpan(1 + 5 * (i % 25), 6 + 5 * (i % 25))
        )
        for i, p in enumerate(holders)
    )
    pool = problem(*holders, models=(spec,), held=held, fixed=tuple(p.node_id for p in holders))
    said = lack(pool)
    assert said.missing == (LayerSpan(0, 1),) and said.one_node_bytes is not None
    more = node("z", memory_mib=said.one_node_bytes / MIB)
    assert allocate_greedy(replace(pool, nodes=(*holders, more))).placements


def test_small_nodes_share_one_gap_where_the_largest_is_needed_for_the_other() -> None:
    spec = tiny_model(24, hidden_size=1152, vocab_size=49152)
    small = (
        node("a", memory_mib=196, layer_ms=None, dtype=DType.BFLOAT16),
        node("b", memory_mib=211, layer_ms=None, rtt_ms=150.0, dtype=DType.BFLOAT16),
    )
    busy = node("busy", memory_mib=269, layer_ms=None, rtt_ms=150.0, dtype=DType.BFLOAT16)
    held = (Placement(node_id=busy.node_id, model_id=TINY, span=LayerSpan(9, 18)),)
    pool = problem(*small, busy, models=(spec,), held=held, fixed=("busy",))
    said = lack(pool)
    assert said.one_node_bytes == 251 * MIB
    for layer_ms in (None, 0.1, 1.0, 30.0):
        new = node("z", memory_mib=251, layer_ms=layer_ms, dtype=DType.BFLOAT16)
        spans = {
            p.span for p in allocate_greedy(replace(pool, nodes=(*pool.nodes, new))).placements
        }
        assert LayerSpan(18, 24) in spans and len(spans) == 4


def test_gaps_that_nobody_was_asked_about_take_a_node_each() -> None:
    spec = tiny_model()
    said = gap_shortage(spec, [LayerSpan(0, 7), LayerSpan(20, 22)], DType.FLOAT32, 1_024)
    assert said.num_nodes == 2 and said.node_bytes is not None and said.one_node_bytes is None
    held = (
        Placement(node_id=NodeId("a"), model_id=TINY, span=LayerSpan(7, 20)),
        Placement(node_id=NodeId("b"), model_id=TINY, span=LayerSpan(22, 30)),
    )
    new = [node(f"z{i}", memory_mib=said.node_bytes / MIB) for i in range(2)]
    pool = problem(node("a"), node("b"), *new, held=held, fixed=("a", "b"))
    assert len(allocate_greedy(pool).placements) == 4


@pytest.mark.parametrize(
    ("rooms", "is_enough"),
    [
        ([Room(6, 6, 6, 6)], True),
        ([Room(6, 3, 3, 3)], False),  # one node is not both ends
        ([Room(6, 3, 3, 3), Room(6, 3, 3, 3)], True),
        ([Room(6, 0, 3, 0), Room(6, 0, 3, 0)], False),  # nobody has room for the embedding
        ([Room(3, 1, 2, 0), Room(3, 2, 2, 0)], False),
    ],
)
def test_the_ends_decide_whether_nodes_are_enough(rooms: list[Room], is_enough: bool) -> None:
    assert ends_fit(rooms, 6) is is_enough
    assert ends_fit([Room(0, 0, 0, 0), *rooms], 6) is is_enough


def test_a_node_that_alone_has_room_for_the_ends_is_found_behind_many_that_have_none() -> None:
    crowd = [node(f"n{i}", memory_mib=250, layer_ms=0.5) for i in range(8)]
    wide = tiny_model(4, hidden_size=1152)
    late = node("z", memory_mib=900, layer_ms=9.0)
    plan = allocate_greedy(problem(*crowd, late, models=(wide,)))
    assert any(p.node_id == "z" for p in plan.placements)
