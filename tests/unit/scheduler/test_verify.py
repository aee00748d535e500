"""The check of plans: each way of being wrong is named."""

from collections.abc import Callable
from dataclasses import replace

from plait.clock import ManualClock
from plait.types import LayerSpan, ModelId, NodeId
from scheduler.allocation import (
    Allocation,
    AllocationProblem,
    Placement,
    allocate,
    allocate_greedy,
    violations,
)
from tests.unit.scheduler.pools import node, problem

POOL = problem(*(node(name, memory_mib=300) for name in ("a", "b", "c")))


def spoil(change: Callable[[Placement], Placement]) -> list[str]:
    """What is said of a good plan whose first placement was changed."""
    plan = allocate_greedy(POOL)
    placements = (change(plan.placements[0]), *plan.placements[1:])
    return violations(POOL, replace(plan, placements=placements))


def test_a_good_plan_passes() -> None:
    assert violations(POOL, allocate_greedy(POOL)) == []


def test_a_node_without_the_memory() -> None:
    found = spoil(lambda p: replace(p, span=LayerSpan(0, 25)))
    assert any("bytes needed" in text for text in found)


def test_a_model_that_an_owner_does_not_allow_is_held_elsewhere_and_said_where_it_is_not() -> None:
    names = ("a", "b", "c", "d")
    nodes = {name: node(name, memory_mib=300) for name in names}
    nodes["b"] = replace(nodes["b"], refused_models=(ModelId("tiny"),))
    pool = problem(*nodes.values())
    for plan in (allocate(pool, clock=ManualClock()), allocate_greedy(pool)):
        assert {placement.node_id for placement in plan.placements} == {"a", "c", "d"}
    swapped = tuple(
        replace(p, node_id=NodeId("b")) if p.node_id == "a" else p for p in plan.placements
    )
    found = violations(pool, replace(plan, placements=swapped))
    assert "node b: its owner does not allow tiny" in found


def test_a_layer_without_a_node() -> None:
    found = spoil(lambda p: replace(p, span=LayerSpan(0, 1)))
    assert any("no node for layers" in text for text in found)
    assert any("has a gap" in text for text in found)


def test_a_cover_is_needed_even_where_no_chain_is_claimed_to_break() -> None:
    roomy = problem(node("a", memory_mib=2_000), node("b", memory_mib=2_000))
    plan = allocate_greedy(roomy)
    half = replace(plan.placements[0], span=LayerSpan(0, 15))
    found = violations(roomy, replace(plan, placements=(half,), pipelines=()))
    assert any("no node for layers 15-29" in text for text in found)


def test_a_node_twice_an_unknown_node_an_unknown_model_a_span_too_long() -> None:
    plan = allocate_greedy(POOL)
    twice = violations(POOL, replace(plan, placements=plan.placements + plan.placements[:1]))
    assert any("placed twice" in text for text in twice)
    assert any("unknown" in t for t in spoil(lambda p: replace(p, node_id=NodeId("zz"))))
    assert any("unknown" in t for t in spoil(lambda p: replace(p, model_id=ModelId("zz"))))
    assert any("of 30" in t for t in spoil(lambda p: replace(p, span=LayerSpan(0, 31))))


def test_figures_that_cannot_be() -> None:
    plan = allocate_greedy(POOL)
    for rate in (float("nan"), float("inf"), -1.0):
        assert violations(POOL, replace(plan, objective_tokens_per_s=rate))
    assert violations(POOL, replace(plan, bound_tokens_per_s=plan.objective_tokens_per_s / 2))


def test_nodes_that_must_not_move() -> None:
    held = tuple(replace(p, reason="held") for p in allocate_greedy(POOL).placements)
    fixed: AllocationProblem = replace(POOL, held=held, fixed=tuple(p.node_id for p in held))
    plan: Allocation = allocate_greedy(fixed)
    assert violations(fixed, plan) == []
    other = replace(plan.placements[0], span=LayerSpan(0, 8))
    found = violations(fixed, replace(plan, placements=(other, *plan.placements[1:])))
    assert any("must keep layers" in text for text in found)
    found = violations(fixed, replace(plan, placements=plan.placements[1:]))
    assert any("must keep its layers" in text for text in found)


def test_an_empty_plan_and_chains_of_strangers() -> None:
    plan = allocate_greedy(POOL)
    assert violations(POOL, replace(plan, placements=(), pipelines=()))
    assert violations(POOL, replace(plan, pipelines=()))
    assert violations(POOL, replace(plan, pipelines=((NodeId("zz"),),)))
    first = plan.pipelines[0]
    assert violations(POOL, replace(plan, pipelines=((first[0], first[0], *first[1:]),)))
