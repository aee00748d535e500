"""What people are told when the network cannot serve, and how long they wait for it."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.state import Limits
from coordinator.core.view import ModelView
from plait.types import NodeId, Reason
from scheduler.allocation.shortage import MIB
from tests.unit.core.stories import Story, only
from tests.unit.core.test_nodes import held_span

LIMITS = Limits(kv_tokens_min=1024)


def model(story: Story) -> ModelView:
    return story.core.view(story.now_ms).models[0]


def refused(effects: list[fx.Effect]) -> Reason:
    (end,) = only(effects, fx.EndRequest)
    assert end.reason is not None
    return end.reason


def poor(*names: str, memory_mib: float = 200) -> Story:
    """A network that is too small and knows it."""
    story = Story(LIMITS)
    for name in names:
        story.join(name, memory_mib=memory_mib)
    story.settle(beating=names)
    return story


def test_too_little_memory_is_refused_soon_with_layers_size_and_what_helps() -> None:
    story = poor("a")
    assert only(story.submit("r1"), fx.EndRequest) == []
    assert only(story.wait(2_900, beating=("a",)), fx.EndRequest) == []
    reason = refused(story.wait(200, beating=("a",)))
    assert reason.code == "not_enough_memory"
    for part in ("tiny cannot be served", "layers 0-29 of 30 have no node", "MiB are missing"):
        assert part in reason.message
    assert "more nodes of 200 MiB each, or one with at least" in reason.message
    assert "`plait token create`" in reason.message


def test_request_status_and_notice_say_the_same() -> None:
    story = poor("a")
    notice = only(story.submit("r1"), fx.NotifyQueued)[0]
    lack = model(story).lack
    assert lack in notice.reason.message and lack in refused(story.wait(3_100)).message
    assert model(story).advice in lack and model(story).missing_bytes % MIB == 0


def test_who_waits_for_a_node_that_could_not_load_hears_why_it_could_not() -> None:
    story = Story(LIMITS)
    story.join("a", memory_mib=2_000)
    assign = only(story.solve(only(story.wait(600), fx.SolveAllocation)[0]), fx.AssignSpan)[0]
    story.tell(
        ev.NodeLoadFailed(
            node_id=assign.node_id,
            incarnation=1,
            epoch=assign.epoch,
            reason=Reason(code="weights_corrupt", message="/home/ada/x.gguf: sha256 differs"),
        )
    )
    for solve in only(story.wait(600, beating=("a",)), fx.SolveAllocation):
        story.solve(solve)
    notice = only(story.submit("r1"), fx.NotifyQueued)[0].reason.message
    assert "a node that could not load (weights corrupt) tries again in" in notice
    assert "/home/ada" not in notice


def test_who_does_what_is_told_is_served() -> None:
    story = poor("a")
    shortage = next(iter(story.core.state.planning.shortages.values()))
    assert shortage.num_nodes is not None and shortage.node_bytes is not None
    names = ["a", *(f"b{i}" for i in range(shortage.num_nodes))]
    for name in names[1:]:
        assert not model(story).is_ready
        story.join(name, memory_mib=shortage.node_bytes / MIB)
        story.settle(beating=tuple(names))
    assert model(story).is_ready and (model(story).lack, model(story).advice) == ("", "")


def test_while_a_node_measures_or_loads_a_request_waits_to_its_limit() -> None:
    story = poor("a")
    story.tell(
        ev.NodeAttached(
            node_id=NodeId("b"), incarnation=1, display_name="b", addresses=(), held=None
        )
    )
    assert "1 node is measuring" in model(story).lack
    story.submit("r1")
    both = ("a", "b")
    assert only(story.wait(29_000, beating=both), fx.EndRequest) == []
    assert refused(story.wait(1_100, beating=both)).message.startswith("waited 30 s")
    story = Story(LIMITS)
    story.join("a", memory_mib=2_000)
    story.solve(only(story.wait(600), fx.SolveAllocation)[0])
    assert model(story).lack == "layers 0-29 of 30 are not served yet; 1 node is loading."
    story.submit("r1")
    assert only(story.wait(29_000, beating=("a",)), fx.EndRequest) == []


def test_when_what_was_on_its_way_fails_to_come_the_refusal_is_soon() -> None:
    story = poor("a")
    attached = ev.NodeAttached(
        node_id=NodeId("b"), incarnation=1, display_name="b", addresses=(), held=None
    )
    story.tell(attached)
    story.submit("r1")
    assert only(story.wait(10_000, beating=("a", "b")), fx.EndRequest) == []
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    story.settle(beating=("a",))
    effects = story.effects + story.wait(3_100, beating=("a",))
    assert refused(effects).code == "not_enough_memory"


def test_a_lost_holder_is_waited_for_and_then_no_more() -> None:
    story = Story(LIMITS)
    story.start("a", "b", "c")
    lost = story.core.state.nodes[NodeId("b")].span
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    story.settle(beating=("a", "c"))
    ahead = model(story)
    assert f"layers {lost} of 30 have no node" in ahead.lack
    assert f"The holder of layers {lost}, b, left" in ahead.lack and "may come back" in ahead.lack
    assert "If not: Join a node with at least" in ahead.lack and ahead.lack.count("layers") == 2
    story.submit("r1")
    assert only(story.wait(26_000, beating=("a", "c")), fx.EndRequest) == []
    reason = refused(story.wait(4_000, beating=("a", "c")))
    assert f"layers {lost} of 30" in reason.message and "come back" not in reason.message
    assert reason.code == "span_unavailable", "its node lacks, whatever memory others have"
    story.submit("r2")
    assert refused(story.wait(3_100, beating=("a", "c"))).code == "span_unavailable"


def test_a_lost_holder_that_comes_back_serves_who_waited() -> None:
    story = Story(LIMITS)
    story.start("a", "b", "c")
    held = story.core.state.nodes[NodeId("b")].held
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    story.submit("r1")
    assert only(story.wait(20_000, beating=("a", "c")), fx.EndRequest) == []
    assert len(only(story.join("b", incarnation=2, held=held), fx.OpenRoute)) == 1
    assert story.core.state.losses == {}


def test_who_left_in_order_is_not_waited_for() -> None:
    story = Story(LIMITS)
    story.start("a", "b", "c")
    story.tell(
        ev.NodeDrainAsked(node_id=NodeId("b"), incarnation=None, reason="", limit_ms=0),
        ev.NodeDrained(node_id=NodeId("b"), incarnation=1),
    )
    story.settle(beating=("a", "c"))
    assert "come back" not in model(story).lack
    story.submit("r1")
    assert len(only(story.wait(3_100, beating=("a", "c")), fx.EndRequest)) == 1


def test_at_the_start_nodes_may_be_coming_back() -> None:
    story = Story(LIMITS)
    story.submit("r1")
    assert "has just started" in model(story).lack
    assert only(story.wait(11_000), fx.EndRequest) == []
    reason = refused(story.wait(1_500))
    assert reason.code == "span_unavailable" and "Join a node with at least" in reason.message
    story.submit("r2")
    assert len(only(story.wait(3_100), fx.EndRequest)) == 1


def test_a_first_plan_that_waits_for_nodes_says_so() -> None:
    limits = Limits(kv_tokens_min=1024, first_plan_nodes_min=3, first_plan_wait_ms=60_000)
    story = Story(limits)
    story.join("a")
    story.wait(2_000, beating=("a",))
    assert "the first plan waits for 3 nodes, 1 are here" in model(story).lack


def test_a_request_queued_anew_has_its_whole_time_again() -> None:
    story = Story(LIMITS)
    story.start("a", "b", "c")
    story.submit("r1")
    story.wait(2_000, beating=("a", "b", "c"))
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    assert only(story.wait(29_900, beating=("a", "c")), fx.EndRequest) == []
    assert len(only(story.wait(200, beating=("a", "c")), fx.EndRequest)) == 1


def test_with_no_planner_to_ask_the_gap_itself_is_named() -> None:
    story = Story(LIMITS)
    story.join("a", held=held_span(0, 7))
    story.tell(ev.NodeDetached(node_id=NodeId("a"), incarnation=1))
    story.join("c", held=held_span(7, 30))
    lack = model(story).lack
    assert "layers 0-6 of 30 have no node" in lack


def test_losses_are_remembered_in_bounds() -> None:
    story = Story(Limits(kv_tokens_min=1024, losses_max=2))
    for name in ("a", "b", "c"):
        story.join(name, held=held_span(0, 7))
        story.tell(ev.NodeDetached(node_id=NodeId(name), incarnation=1))
    assert list(story.core.state.losses) == ["b", "c"]


def test_what_was_told_of_a_pool_is_not_told_of_another() -> None:
    story = poor("a")
    assert "more nodes of 200 MiB" in model(story).lack
    story.tell(ev.NodeDetached(node_id=NodeId("a"), incarnation=1))
    story.wait(1_000)
    assert (
        "have no node, 604 MiB are missing. Join a node with at least 604 MiB." in model(story).lack
    )


def test_a_paused_node_is_shown_with_its_reason_given_nothing_and_hoped_for_by_nobody() -> None:
    story = poor("a")
    why = "its owner paused it; `plait node resume` lifts that"
    paused = ev.NodeAttached(
        node_id=NodeId("b"), incarnation=1, display_name="b", addresses=(), paused=why
    )
    story.tell(paused)
    (view,) = (node for node in story.core.view(story.now_ms).nodes if node.node_id == "b")
    assert (view.state, view.span_reason) == ("paused", why)
    assert "measuring" not in model(story).lack
    effects = story.wait(5_000, beating=("a", "b"))
    assert only(effects, fx.AssignSpan) == []
