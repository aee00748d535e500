"""Leaving in order: what ends in time stays, the rest moves, nobody is blamed."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.state import Limits
from plait.types import NodeId, Reason, RequestId
from tests.unit.core.stories import Story, only


def two_replicas(limits: Limits | None = None) -> Story:
    story = Story(limits)
    story.start("a", "b", memory_mib=2_000)
    return story


def drain(story: Story, node_id: NodeId, limit_ms: int) -> list[fx.Effect]:
    return story.tell(
        ev.NodeDrainAsked(node_id=node_id, incarnation=None, reason="operator", limit_ms=limit_ms)
    )


def running(story: Story, name: str, *, new: int) -> NodeId:
    """The node that a request in decode runs on."""
    opened = only(story.submit(name, new=new), fx.OpenRoute)[0]
    story.tell(
        ev.RouteOpened(request_id=RequestId(name), epoch=1),
        ev.FirstTokenSent(request_id=RequestId(name), epoch=1),
    )
    return opened.route[0].node_id


def test_what_ends_in_time_stays_and_what_would_not_moves_at_once() -> None:
    story = two_replicas()
    node_id = running(story, "long", new=3_000)  # over a hundred seconds, at 34 ms a token
    effects = drain(story, node_id, 10_000)
    moved = only(effects, fx.OpenRoute)[0]
    assert (moved.request_id, moved.epoch) == ("long", 2)
    assert node_id not in [stage.node_id for stage in moved.route]
    assert only(effects, fx.CloseRoute)[0].epoch == 1

    story = two_replicas()
    node_id = running(story, "short", new=20)
    assert not only(drain(story, node_id, 10_000), fx.CloseRoute)


def test_what_outlasts_its_estimate_moves_then() -> None:
    story = two_replicas()
    node_id = running(story, "r", new=20)
    drain(story, node_id, 10_000)
    assert not only(story.wait(600, beating=("a", "b")), fx.OpenRoute)
    assert only(story.wait(600, beating=("a", "b")), fx.OpenRoute)[0].epoch == 2


def test_without_another_chain_a_request_runs_on_until_shortly_before_the_limit() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    node_id = running(story, "long", new=3_000)
    effects = drain(story, node_id, 10_000)
    assert not only(effects, fx.CloseRoute)
    assert not only(story.wait(6_900, beating=("a",)), fx.CloseRoute)
    assert only(story.wait(200, beating=("a",)), fx.CloseRoute)


def test_a_chain_that_appears_meanwhile_takes_the_request_over() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    node_id = running(story, "long", new=3_000)
    drain(story, node_id, 30_000)
    story.join("b", memory_mib=2_000)
    story.settle(beating=("a", "b"))
    story.wait(300, beating=("a", "b"))
    request = story.core.state.requests[RequestId("long")]
    assert request.epoch == 2 and request.last_route[0].node_id == "b"


def test_moves_are_no_failures_of_a_request() -> None:
    story = two_replicas(Limits(kv_tokens_min=1024, attempts_max=2))
    node_id = running(story, "long", new=3_000)
    other = only(drain(story, node_id, 10_000), fx.OpenRoute)[0].route[0].node_id
    request = story.core.state.requests[RequestId("long")]
    assert (request.epoch, request.num_attempts, request.avoid) == (2, 1, {})
    assert story.core.state.nodes[other].num_blames == 0
    assert story.core.state.counters.routes_moved == 1
    effects = story.tell(
        ev.RouteBroke(
            request_id=RequestId("long"),
            epoch=2,
            node_id=None,
            reason=Reason(code="hop_lost", message="gone"),
        )
    )
    assert not only(effects, fx.EndRequest), "the chain that it left in order does not count"


def test_the_node_is_told_its_limit_and_given_up_a_grace_after_it() -> None:
    for limit_ms in (500, 10_000):
        story = two_replicas()
        node_id = running(story, "r", new=3_000)
        told = only(drain(story, node_id, limit_ms), fx.DrainNode)[0]
        assert told.limit_ms == limit_ms
        assert not only(story.wait(limit_ms + 1_000, beating=("a", "b")), fx.EvictNode)
        evicted = only(story.wait(2_000, beating=("a", "b")), fx.EvictNode)[0]
        assert evicted.node_id == node_id and not evicted.may_rejoin
