"""Requests that come back after a restart: their routes are found, or they get others."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import RequestState
from plait.types import HeldSpan, LayerSpan, ModelId, NodeId, Reason, RequestId, Stage
from tests.unit.core.stories import Story, only

R = RequestId("r")
ROUTE = (Stage(NodeId("a"), 1, LayerSpan(0, 30)),)
HELD = HeldSpan(
    model_id=ModelId("tiny"),
    span=LayerSpan(0, 30),
    allocation_epoch=3,
    digest="d" * 64,
    weight_bytes=1,
    read_bytes=1,
    kv_tokens_max=4096,
)


def come_back(story: Story, *, epoch: int = 2) -> list[fx.Effect]:
    return story.tell(
        ev.RequestSubmitted(
            request_id=R,
            model_id=ModelId("tiny"),
            prompt_tokens=10,
            max_new_tokens=20,
            key_id="k",
            resumes_epoch=epoch,
            num_generated=5,
        )
    )


def found(*, epoch: int = 2, is_running: bool = True, kv_tokens: int = 30) -> ev.RouteFound:
    return ev.RouteFound(
        request_id=R, epoch=epoch, route=ROUTE, kv_tokens=kv_tokens, is_running=is_running
    )


def test_a_found_route_goes_on_and_its_kv_is_in_the_books() -> None:
    story = Story()
    story.join("a", held=HELD)
    come_back(story)
    effects = story.tell(found())
    assert not only(effects, fx.OpenRoute) and not only(effects, fx.CloseRoute)
    state = story.core.state
    assert (state.requests[R].state, state.requests[R].epoch) == (RequestState.DECODE, 2)
    assert state.nodes[NodeId("a")].kv_tokens_reserved == 30
    assert state.counters.routes_resumed == 1
    ended = only(story.finish("r", epoch=2), fx.EndRequest)
    assert ended and state.nodes[NodeId("a")].kv_tokens_reserved == 0


def test_a_found_route_waits_for_its_nodes_to_attach() -> None:
    story = Story()
    come_back(story)
    story.tell(found())
    assert story.core.state.requests[R].state is RequestState.QUEUED
    story.wait(2_000)
    assert not only(story.join("a", held=HELD), fx.OpenRoute)
    assert story.core.state.requests[R].state is RequestState.DECODE


def test_a_request_is_held_for_its_route_and_then_gets_another_with_a_higher_epoch() -> None:
    story = Story()
    story.join("a", held=HELD)
    assert not only(come_back(story), fx.OpenRoute)
    assert not only(story.wait(5_900, beating=("a",)), fx.OpenRoute)
    opened = only(story.wait(200, beating=("a",)), fx.OpenRoute)[0]
    assert opened.epoch > 2 + story.core.state.limits.attempts_max - 1
    assert story.core.state.requests[R].num_attempts == 1


def test_a_route_that_is_over_or_of_a_newer_epoch_is_left_at_once() -> None:
    for epoch in (2, 50):
        story = Story()
        story.join("a", held=HELD)
        come_back(story)
        opened = only(story.tell(found(epoch=epoch, is_running=False)), fx.OpenRoute)[0]
        assert opened.epoch > epoch


def test_a_route_over_another_process_or_beyond_the_kv_is_closed_and_left() -> None:
    story = Story()
    story.join("a", held=HELD, incarnation=2)
    come_back(story)
    effects = story.tell(found())
    assert only(effects, fx.CloseRoute)[0].epoch == 2
    assert only(effects, fx.OpenRoute)[0].epoch > 2

    story = Story()
    story.join("a", held=HELD)
    come_back(story)
    assert only(story.tell(found(kv_tokens=5_000)), fx.CloseRoute)


def test_a_found_route_that_breaks_before_its_nodes_are_here_is_left() -> None:
    story = Story()
    come_back(story)
    story.tell(found())
    broke = ev.RouteBroke(
        request_id=R, epoch=2, node_id=None, reason=Reason(code="hop_lost", message="gone")
    )
    assert only(story.tell(broke), fx.CloseRoute)
    story.join("a", held=HELD)
    assert story.core.state.requests[R].epoch > 2
    assert story.core.state.requests[R].state is RequestState.OPENING


def test_a_route_that_nobody_asks_for_is_ignored() -> None:
    story = Story()
    assert story.tell(found()) == []
    assert story.core.state.counters.events_ignored == 1
