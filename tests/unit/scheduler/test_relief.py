"""What is left of a chain takes a spare in, which keeps what else it holds where it has room."""

from dataclasses import replace

import pytest

from plait.types import LayerSpan, ModelId, NodeId
from scheduler.allocation import Allocation, allocate_greedy, violations
from scheduler.allocation.problem import Placement
from scheduler.allocation.rates import model_rates
from scheduler.handover import handed_over
from tests.unit.scheduler.pools import node, problem
from tests.unit.scheduler.test_router import router

CHAIN = {"a": (0, 9), "b": (9, 21), "c": (21, 30)}
WHOLE = LayerSpan(0, 30)


def after_a_loss(
    lost: str,
    *,
    held: dict[str, tuple[int, int]],
    spare_mib: float = 2_000,
    layer_ms: float = 2.0,
    is_busy: bool = False,
) -> Allocation:
    """The repair when `lost` has gone; `small` nodes have room for a stage with much KV, the spare
    `large` for so much memory."""
    placements = tuple(
        Placement(node_id=NodeId(name), model_id=ModelId("tiny"), span=LayerSpan(*span))
        for name, span in held.items()
        if name != lost
    )
    small = [node(p.node_id, memory_mib=480) for p in placements if p.node_id != "large"]
    large = node("large", memory_mib=spare_mib, layer_ms=layer_ms)
    fixed = ("large",) if is_busy else ()
    question = replace(problem(*small, large, held=placements, fixed=fixed), is_repair=True)
    plan = allocate_greedy(question)
    assert violations(question, plan) == []
    (rate,) = model_rates(question, plan).values()
    assert rate == pytest.approx(plan.objective_tokens_per_s)
    return plan


def span_of_the_spare(plan: Allocation) -> LayerSpan:
    (span,) = (p.span for p in plan.placements if p.node_id == "large")
    return span


def test_a_spare_joins_the_torn_chain_and_lets_go_of_nothing() -> None:
    plan = after_a_loss("a", held={**CHAIN, "large": (0, 30)})
    assert plan.pipelines == (("large", "b", "c"),)
    assert span_of_the_spare(plan) == WHOLE
    assert (plan.moved_nodes, plan.moved_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("lost", "chain"),
    [("a", ("large", "b", "c")), ("b", ("a", "large", "c")), ("c", ("a", "b", "large"))],
)
def test_what_is_left_of_a_chain_relieves_a_spare_that_is_busy(
    lost: str, chain: tuple[str, ...]
) -> None:
    """As quick as they are, it would run the whole model alone for a single request."""
    plan = after_a_loss(lost, held={**CHAIN, "large": (0, 30)}, layer_ms=1.0, is_busy=True)
    assert plan.pipelines == (chain,)
    assert (plan.moved_nodes, plan.moved_bytes) == (0, 0)


def test_a_spare_lets_go_where_both_would_leave_its_chain_too_little_kv() -> None:
    plan = after_a_loss("a", held={**CHAIN, "large": (0, 30)}, spare_mib=560)
    assert span_of_the_spare(plan) == LayerSpan(0, 9)


@pytest.mark.parametrize(
    ("held", "runs"),
    [
        ([(0, 10), (10, 30)], [(0, 10), (10, 30)]),
        ([(0, 12), (10, 30)], [(0, 12), (12, 30)]),  # to the end of what it holds
        ([(0, 30), (10, 20), (20, 30)], [(0, 10), (10, 20), (20, 30)]),
        ([(0, 10), (0, 30), (20, 30)], [(0, 10), (10, 20), (20, 30)]),
        ([(0, 30), (0, 30)], None),  # nothing says where one begins
        ([(0, 10), (12, 30)], None),
        ([(0, 10), (10, 29)], None),
    ],
)
def test_stages_run_what_is_left_to_them(
    held: list[tuple[int, int]], runs: list[tuple[int, int]] | None
) -> None:
    expected = None if runs is None else [LayerSpan(*span) for span in runs]
    assert handed_over([LayerSpan(*span) for span in held], 30) == expected


def test_a_planned_chain_over_a_part_of_what_a_node_holds_is_kept_ready() -> None:
    held = {"large": (0, 30), "b": (9, 21), "c": (21, 30)}
    chain = ("large", "b", "c")
    ready = router(held, weights={chain: 2.0}).chains.all
    (planned,) = (each for each in ready if each.node_ids == chain)
    assert planned.weight == 2.0
    assert [stage.span for stage in planned.route] == [
        LayerSpan(0, 9),
        LayerSpan(9, 21),
        LayerSpan(21, 30),
    ]
    torn = {name: span for name, span in held.items() if name != "c"}
    assert all(each.node_ids != chain for each in router(torn, weights={chain: 2.0}).chains.all)
