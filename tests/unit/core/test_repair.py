"""Torn replicas are repaired: by few moves, of idle nodes, not too often."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.state import Limits
from plait.types import NodeId
from tests.unit.core.stories import Story, only

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
