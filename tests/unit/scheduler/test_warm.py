"""Weights that lie on nodes' disks: plans that need them move fewer bytes over the Internet."""

from dataclasses import replace

from plait.types import LayerSpan, ModelId, NodeId, NodeProfile
from scheduler.allocation import AllocationProblem, Placement, allocate, allocate_greedy, violations
from scheduler.allocation.moves import moved
from scheduler.allocation.problem import Cached
from tests.unit.scheduler.pools import node, problem, tiny_model

TINY = ModelId("tiny")


def on_disk(name: str, start: int, end: int) -> Cached:
    return Cached(node_id=NodeId(name), model_id=TINY, span=LayerSpan(start, end))


def holds(name: str, start: int, end: int) -> Placement:
    return Placement(node_id=NodeId(name), model_id=TINY, span=LayerSpan(start, end))


def torn(*newcomers: NodeProfile, cached: tuple[Cached, ...]) -> AllocationProblem:
    """Layers 10-19 of three nodes are missing; nobody else may move."""
    return replace(
        problem(
            node("a"),
            node("c"),
            *newcomers,
            held=(holds("a", 0, 10), holds("c", 20, 30)),
            fixed=("a", "c"),
        ),
        cached=cached,
    )


def spans(pool: AllocationProblem) -> dict[str, LayerSpan]:
    plan = allocate_greedy(pool)
    assert violations(pool, plan) == []
    return {p.node_id: p.span for p in plan.placements}


def test_bytes_on_the_disk_are_read_but_not_fetched() -> None:
    pool = torn(node("b"), cached=(on_disk("b", 8, 15),))
    what = moved(pool, (holds("a", 0, 10), holds("b", 10, 20), holds("c", 20, 30)))
    layer_bytes = tiny_model().layer_bytes(node("b").compute_dtype)
    assert (what.num_nodes, what.num_layers) == (0, 10)
    assert (what.num_bytes, what.fetched_bytes) == (10 * layer_bytes, 5 * layer_bytes)
    assert what.weight == 5 * layer_bytes + 0.1 * 5 * layer_bytes


def test_parts_of_a_gap_go_to_who_has_them() -> None:
    newcomers = node("x", memory_mib=130), node("y", memory_mib=130)
    for first, last in (("x", "y"), ("y", "x")):
        cached = on_disk(first, 10, 15), on_disk(last, 15, 20)
        after = spans(torn(*newcomers, cached=cached))
        assert (after[first], after[last]) == (LayerSpan(10, 15), LayerSpan(15, 20))


def test_a_gap_goes_to_a_much_quicker_one_all_the_same() -> None:
    quick, slow = node("x", memory_mib=200), node("y", memory_mib=200, layer_ms=20.0)
    assert spans(torn(quick, slow, cached=(on_disk("y", 10, 20),)))["x"] == LayerSpan(10, 20)


def test_nodes_that_come_back_get_what_they_had() -> None:
    nodes = [node(f"n{i}", memory_mib=250) for i in range(4)]
    had = tuple(
        on_disk(f"n{(i + 1) % 4}", *edges)
        for i, edges in enumerate(((0, 7), (7, 15), (15, 23), (23, 30)))
    )
    pool = replace(problem(*nodes, models=(tiny_model(vocab_size=256),)), cached=had)
    assert spans(pool) == {c.node_id: c.span for c in had}
    assert allocate(pool).fetched_bytes == 0


def test_what_is_on_a_disk_and_no_more_fits_or_is_no_part_is_left_alone() -> None:
    pool = problem(*(node(f"n{i}", memory_mib=250) for i in range(4)))
    nonsense = (on_disk("n0", 0, 30), on_disk("n1", 20, 40), on_disk("nobody", 0, 7))
    assert spans(replace(pool, cached=nonsense)) == spans(pool)


def test_neighbours_reach_over_a_gap_with_what_they_have() -> None:
    pool = replace(
        problem(
            node("a", memory_mib=420),
            node("c", memory_mib=420),
            held=(holds("a", 0, 12), holds("c", 18, 30)),
        ),
        is_repair=True,
    )
    for name, cached in (("a", on_disk("a", 0, 18)), ("c", on_disk("c", 12, 30))):
        after = spans(replace(pool, cached=(cached,)))
        assert after[name].contains(LayerSpan(13, 17)), (name, after)
