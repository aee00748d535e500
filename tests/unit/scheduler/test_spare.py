"""What nodes hold that complete no further chain."""

from plait.types import LayerSpan, ModelId, NodeId, NodeProfile
from scheduler.allocation import Allocation, allocate, violations
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.problem import Placement
from scheduler.allocation.spare import replicate
from tests.unit.scheduler.pools import node, problem, tiny_model

THREE = {"a": (0, 10), "b": (10, 20), "c": (20, 30)}


def spans_for(held: dict[str, tuple[int, int]], *free: NodeProfile) -> dict[str, LayerSpan]:
    """What `free` nodes are to hold beside `held`."""
    small = [node(name, memory_mib=400) for name in held if name not in {p.node_id for p in free}]
    planner = ChainPlanner(problem(*small, *free), tiny_model())
    spans = {NodeId(name): LayerSpan(*span) for name, span in held.items()}
    return {str(n): s for n, s in replicate(planner, spans, [p.node_id for p in free]).items()}


def placements_of(held: dict[str, tuple[int, int]]) -> tuple[Placement, ...]:
    return tuple(
        Placement(node_id=NodeId(name), model_id=ModelId("tiny"), span=LayerSpan(*span))
        for name, span in held.items()
    )


def joining(held: dict[str, tuple[int, int]], *profiles: NodeProfile) -> Allocation:
    """A plan in which those of `held` keep what they have."""
    question = problem(*profiles, held=placements_of(held), fixed=tuple(held))
    plan = allocate(question)
    assert violations(question, plan) == []
    return plan


def test_a_spare_holds_as_many_spans_as_it_has_room_for() -> None:
    assert spans_for(THREE, node("spare", memory_mib=2_000))["spare"] == LayerSpan(0, 30)
    assert spans_for(THREE, node("spare", memory_mib=480))["spare"] in (
        LayerSpan(0, 20),
        LayerSpan(10, 30),
    )
    assert spans_for(THREE, node("spare", memory_mib=20)) == {}


def test_two_spares_together_cover_what_one_alone_cannot() -> None:
    given = spans_for(THREE, node("one", memory_mib=480), node("two", memory_mib=480))
    assert {layer for span in given.values() for layer in range(span.start, span.end)} == set(
        range(30)
    )


def test_layers_that_only_one_node_holds_come_before_slow_ones_that_two_hold() -> None:
    held = THREE | {"b2": (10, 20)}
    assert spans_for(held, node("spare", memory_mib=300))["spare"] != LayerSpan(10, 20)


def test_a_node_that_may_move_keeps_the_span_that_nobody_else_would_cut_out() -> None:
    """The middle of the chain is gone: what is left has no gain from moving to one end."""
    held = {"a": (0, 10), "c": (20, 30), "large": (0, 30)}
    profiles = [node("a", memory_mib=300), node("c", memory_mib=300)]
    question = problem(
        *profiles, node("large", memory_mib=2_000), held=placements_of(held), fixed=("c", "large")
    )
    (kept,) = [p for p in allocate(question).placements if p.node_id == "a"]
    assert kept.span == LayerSpan(0, 10)


def test_a_node_that_returns_gets_the_span_that_its_chain_lacks() -> None:
    """The rest of the chain and one large node, which holds the whole model, are left."""
    held = {"b": (10, 20), "c": (20, 30), "large": (0, 30)}
    profiles = [node(name, memory_mib=300) for name in ("a", "b", "c")]
    plan = joining(held, *profiles, node("large", memory_mib=2_000))
    (back,) = [p for p in plan.placements if p.node_id == "a"]
    assert back.span == LayerSpan(0, 10)
    assert {frozenset(chain) for chain in plan.pipelines} == {
        frozenset({"large"}),
        frozenset({"a", "b", "c"}),
    }
