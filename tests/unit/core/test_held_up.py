"""Nodes whose process does not run all the time: dearer at once, left by what runs there."""

from dataclasses import replace

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.types import NodeId, RequestId
from tests.unit.core.stories import IDLE, Story, only

NAMES = ("a", "b")


def two_replicas() -> Story:
    story = Story()
    story.start(*NAMES, memory_mib=2_000)
    return story


def beat(story: Story, name: str, held_up_ms: float) -> list[fx.Effect]:
    load = replace(IDLE, held_up_ms=held_up_ms)
    return story.tell(ev.NodeReported(node_id=NodeId(name), incarnation=1, load=load))


def live(story: Story, held_up_ms: dict[str, float], seconds: int) -> list[fx.Effect]:
    caused: list[fx.Effect] = []
    for _ in range(seconds):
        caused += story.wait(1_000)
        for name in NAMES:
            caused += beat(story, name, held_up_ms.get(name, 0.0))
    return caused


def running(story: Story, name: str) -> NodeId:
    opened = only(story.submit(name, new=3_000), fx.OpenRoute)[0]
    request_id = RequestId(name)
    story.tell(
        ev.RouteOpened(request_id=request_id, epoch=1),
        ev.FirstTokenSent(request_id=request_id, epoch=1),
    )
    return opened.route[0].node_id


def chosen(story: Story, num: int) -> list[NodeId]:
    """Where so many requests one after another run."""
    found = []
    for number in range(num):
        name = f"{story.now_ms}-{number}"
        found += [s.node_id for s in only(story.submit(name), fx.OpenRoute)[0].route]
        story.finish(name)
        story.wait(10)
    return found


def test_new_requests_avoid_a_node_that_is_held_up_within_seconds_until_it_is_not() -> None:
    story = two_replicas()
    assert set(chosen(story, 10)) == set(NAMES)
    live(story, {"a": 200.0}, 3)
    assert chosen(story, 20) == ["b"] * 20
    assert story.core.state.nodes[NodeId("a")].num_blames == 0, "it is not punished"
    live(story, {}, 6)
    assert set(chosen(story, 10)) == set(NAMES)


def test_a_held_up_node_is_used_where_there_is_no_other() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    live(story, {"a": 500.0}, 3)
    assert running(story, "r") == "a"


def test_a_running_request_leaves_once_it_has_been_slow_for_some_seconds() -> None:
    story = two_replicas()
    slow = running(story, "r")
    assert not only(live(story, {slow: 400.0}, 3), fx.OpenRoute), "it is not left for a moment"
    moved = only(live(story, {slow: 400.0}, 3), fx.OpenRoute)
    assert [(each.request_id, each.epoch) for each in moved] == [("r", 2)]
    assert slow not in [stage.node_id for stage in moved[0].route]
    request = story.core.state.requests[RequestId("r")]
    assert (request.num_attempts, request.avoid) == (1, {}), "nobody is blamed"
    assert story.core.state.nodes[slow].num_blames == 0


def test_it_stays_where_the_other_chain_is_no_quicker() -> None:
    story = two_replicas()
    running(story, "r")
    everywhere = dict.fromkeys(NAMES, 400.0)
    assert not only(live(story, everywhere, 10), fx.OpenRoute)


def test_a_pause_that_ends_in_time_moves_nothing() -> None:
    story = two_replicas()
    slow = running(story, "r")
    live(story, {slow: 400.0}, 2)
    assert not only(live(story, {}, 10), fx.OpenRoute)


def test_steps_that_have_become_slow_are_left_as_well() -> None:
    story = two_replicas()
    slow = running(story, "r")
    caused: list[fx.Effect] = []
    for _ in range(6):
        caused += story.wait(1_000)
        for name in NAMES:
            step_ms = 600.0 if name == slow else 35.0
            load = replace(IDLE, num_requests=int(name == slow), stage_ms=step_ms)
            caused += story.tell(ev.NodeReported(node_id=NodeId(name), incarnation=1, load=load))
    assert [each.epoch for each in only(caused, fx.OpenRoute)] == [2]
