"""Torn replicas are repaired: by few moves, of idle nodes, not too often."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.changes import CHANGES_MAX, PlanCause, PlanChanges
from coordinator.core.state import Limits
from plait.types import NodeId
from scheduler.allocation.problem import Allocation
from tests.unit.core.stories import Story, only
from tests.unit.scheduler.pools import problem

NAMES = ("a", "b", "c", "d", "e", "f")


def torn() -> tuple[Story, list[fx.SolveAllocation]]:
    """Six nodes, two replicas or more; one node is lost, and every layer is still held."""
    story = Story()
    story.start(*NAMES)
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    return story, only(story.wait(1_000, beating=left()), fx.SolveAllocation)


def left(*gone: str) -> tuple[str, ...]:
    return tuple(name for name in NAMES if name not in ("b", *gone))


def test_a_torn_replica_is_planned_for_though_every_layer_is_held() -> None:
    story, solves = torn()
    assert story.core.view(story.now_ms).models[0].is_ready
    assert [s.problem.is_repair for s in solves] == [True]


def test_after_a_repair_the_next_one_waits_for_the_interval() -> None:
    story, solves = torn()
    story.solve(solves[0])
    story.settle(beating=left())
    story.tell(ev.NodeDetached(node_id=NodeId("a"), incarnation=1))
    assert story.core.view(story.now_ms).models[0].is_ready
    interval_ms = Limits().repair_interval_ms
    early = story.wait(interval_ms - 10_000, beating=left("a"))
    assert only(early, fx.SolveAllocation) == []
    assert len(only(story.wait(10_000, beating=left("a")), fx.SolveAllocation)) == 1


def test_a_repaired_plan_is_not_repaired_again() -> None:
    story, solves = torn()
    story.solve(solves[0])
    story.settle(beating=left())
    later = story.wait(3 * Limits().repair_interval_ms, beating=left())
    assert only(later, fx.SolveAllocation) == []


def test_the_view_says_what_a_plan_moves() -> None:
    story = Story()
    story.start("a", "b", "c")
    plan = story.core.view(story.now_ms).plan
    assert plan is not None
    assert plan.moved_nodes == 0
    assert plan.moved_bytes > 0


def test_what_plans_moved_is_remembered_with_its_cause_the_newest_first() -> None:
    story = Story()
    story.start(*NAMES)
    (first,) = story.core.view(story.now_ms).changes
    assert (first.cause, first.moved_nodes) == ("newcomers", 0) and first.moved_bytes > 0
    nodes = story.core.view(story.now_ms).nodes
    heads = [n.node_id for n in nodes if n.span is not None and n.span[0] == 0]
    for name in heads:  # nobody holds the first layers any more: somebody has to move
        story.tell(ev.NodeDetached(node_id=NodeId(name), incarnation=1))
    beating = tuple(name for name in NAMES if name not in heads)
    story.settle(beating=beating)
    view = story.core.view(story.now_ms)
    assert view.models[0].is_ready
    assert [change.cause for change in view.changes] == ["repair", "newcomers"]
    repair = view.changes[0]
    assert repair.moved_nodes > 0 and repair.moved_bytes > 0
    assert view.plan is not None and repair.epoch == view.plan.epoch
    assert view.counters.weight_bytes_moved == repair.moved_bytes + first.moved_bytes
    later = story.core.view(story.now_ms + 5_000)
    assert later.changes[0].age_ms == repair.age_ms + 5_000
    story.wait(3 * Limits().repair_interval_ms, beating=beating)
    assert len(story.core.view(story.now_ms).changes) == 2  # plans that move nothing say nothing


def test_changes_are_bounded() -> None:
    changes = PlanChanges()
    plan = Allocation(
        placements=(),
        pipelines=(),
        objective_tokens_per_s=1.0,
        bound_tokens_per_s=1.0,
        solver="fake",
        status="optimal",
        solve_ms=1,
        moved_bytes=5,
    )
    for epoch in range(3 * CHANGES_MAX):
        changes.note(plan, problem(), at_ms=epoch, epoch=epoch, is_relaxed=True)
    kept = changes.newest()
    assert len(kept) == CHANGES_MAX and kept[0].epoch == 3 * CHANGES_MAX - 1
    assert {change.cause for change in kept} == {PlanCause.REPLAN}
