"""The main job: nodes join, a plan is made, a request is served."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import NodeState
from plait.types import FinishReason, RequestId
from tests.unit.core.stories import Story, only


def test_three_nodes_join_are_planned_and_serve_a_request() -> None:
    story = Story()
    story.start("a", "b", "c")
    view = story.core.view(story.now_ms)
    assert [node.state for node in view.nodes] == ["serving"] * 3
    assert view.models[0].is_ready and view.models[0].missing == ()
    assert view.plan is not None and view.plan.epoch == 1

    opened = only(story.submit("r1"), fx.OpenRoute)
    assert len(opened) == 1 and len(opened[0].route) == 3 and opened[0].epoch == 1
    assert opened[0].addresses[0] == (f"{opened[0].route[0].node_id}:1",)
    reserved = {n.node_id: n.kv_tokens_reserved for n in story.core.state.nodes.values()}
    assert set(reserved.values()) == {30}

    effects = story.finish("r1")
    assert [type(e) for e in effects] == [fx.CloseRoute, fx.EndRequest]
    assert only(effects, fx.EndRequest)[0].finish_reason is FinishReason.LENGTH
    assert all(n.kv_tokens_reserved == 0 for n in story.core.state.nodes.values())
    assert story.core.view(story.now_ms).counters.requests_finished == 1


def test_a_lost_node_sends_the_request_to_its_spare_with_a_higher_epoch() -> None:
    story = Story()
    story.start("a", "b", "c", "d")
    first = only(story.submit("r1"), fx.OpenRoute)[0]
    story.tell(
        ev.RouteOpened(request_id=RequestId("r1"), epoch=1),
        ev.FirstTokenSent(request_id=RequestId("r1"), epoch=1),
    )
    spans = [node.span for node in story.core.state.nodes.values()]
    double = next(stage for stage in first.route if sum(span == stage.span for span in spans) == 2)
    effects = story.tell(ev.NodeDetached(node_id=double.node_id, incarnation=1))
    closed, opened = only(effects, fx.CloseRoute), only(effects, fx.OpenRoute)
    assert [c.epoch for c in closed] == [1] and [o.epoch for o in opened] == [2]
    assert double.node_id not in [stage.node_id for stage in opened[0].route]
    story.tell(ev.FirstTokenSent(request_id=RequestId("r1"), epoch=1))  # late: ignored
    assert story.core.state.counters.events_ignored == 1
    effects = story.finish("r1", epoch=2)
    assert only(effects, fx.EndRequest)[0].finish_reason is FinishReason.LENGTH
    assert [n.state for n in story.core.state.nodes.values()] == [NodeState.SERVING] * 3
