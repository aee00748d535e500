"""A node that was given nothing stands by, and is told why and what would let it serve."""

from dataclasses import replace

from coordinator.core import events as ev
from coordinator.core.state import Limits
from coordinator.core.view import NodeView
from plait.types import NodeId
from tests.unit.core.stories import Story

LIMITS = Limits(kv_tokens_min=1024)


def seen(story: Story, name: str) -> NodeView:
    (node,) = [n for n in story.core.view(story.now_ms).nodes if n.node_id == name]
    return node


def test_a_node_on_which_no_layer_fits_stands_by_until_it_offers_more() -> None:
    story = Story(LIMITS)
    story.start("a", memory_mib=2_000)
    story.join("tiny", memory_mib=12)
    assert seen(story, "tiny").state == "joining"
    story.settle(beating=("a", "tiny"))
    node = seen(story, "tiny")
    assert (node.state, node.span) == ("standby", None)
    assert "no layer of tiny fits in the 12 MiB that it offers" in node.span_reason
    assert "more memory would let it serve" in node.span_reason
    assert seen(story, "a").state == "serving"


def test_a_node_with_less_room_than_any_part_of_the_plan_hears_how_much_it_lacks() -> None:
    story = Story(LIMITS)
    story.start("a", memory_mib=2_000)
    story.join("small", memory_mib=120)
    story.settle(beating=("a", "small"))
    node = seen(story, "small")
    assert node.state == "standby"
    assert "the smallest part of the plan has 30" in node.span_reason


def test_where_no_model_fits_more_nodes_would_let_all_serve() -> None:
    story = Story(LIMITS)
    story.join("a", memory_mib=200)
    story.settle(beating=("a",))
    node = seen(story, "a")
    assert node.state == "standby" and "more nodes would let it serve" in node.span_reason


def test_an_owner_who_allows_no_model_is_named() -> None:
    story = Story(LIMITS)
    story.start("a", memory_mib=2_000)
    story.join("b", memory_mib=2_000)
    record = story.core.state.nodes[NodeId("b")]
    assert record.profile is not None
    record.profile = replace(record.profile, refused_models=tuple(story.core.state.models))
    story.settle(beating=("a", "b"))
    assert seen(story, "b").state == "standby"
    assert "its owner allows none" in seen(story, "b").span_reason


def test_a_node_that_left_and_came_back_is_joining_until_a_plan_knows_it() -> None:
    story = Story(LIMITS)
    story.start("a", memory_mib=2_000)
    story.join("tiny", memory_mib=12)
    story.settle(beating=("a", "tiny"))
    story.tell(ev.NodeDetached(node_id=NodeId("tiny"), incarnation=1))
    story.join("tiny", incarnation=2, memory_mib=12)
    assert seen(story, "tiny").state == "joining"
