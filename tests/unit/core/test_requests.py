"""Requests: queue, KV, breaks, waits, ends."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.state import Limits
from plait.types import FinishReason, NodeId, Reason, RequestId
from scheduler.selection.fairness import SloClass
from tests.unit.core.stories import Story, only

R1 = RequestId("r1")


def broke(story: Story, name: str, epoch: int, node: str | None) -> list[fx.Effect]:
    return story.tell(
        ev.RouteBroke(
            request_id=RequestId(name),
            epoch=epoch,
            node_id=NodeId(node) if node is not None else None,
            reason=Reason(code="hop_broken", message="reset"),
        )
    )


def ended(effects: list[fx.Effect]) -> list[tuple[str, str]]:
    return [
        (e.finish_reason.value, e.reason.code if e.reason is not None else "")
        for e in only(effects, fx.EndRequest)
    ]


def test_requests_that_can_never_be_served_are_refused_at_once() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    assert ended(story.submit("r1", model="gpt-5")) == [("error", "model_not_found")]
    assert ended(story.submit("r2", prompt=0)) == [("error", "invalid_argument")]
    assert ended(story.submit("r3", new=0)) == [("error", "invalid_argument")]
    assert ended(story.submit("r4", prompt=8_000, new=500)) == [("error", "context_exceeded")]
    assert ended(story.submit("r5", prompt=4_000, new=97)) == [("error", "request_too_large")]
    assert ended(story.submit("r6", prompt=4_000, new=96)) == []
    counters = story.core.view(story.now_ms).counters
    assert (counters.requests_refused, counters.requests_failed) == (5, 0)


def test_kv_is_reserved_on_every_stage_and_the_next_request_waits_for_it() -> None:
    story = Story()
    story.start("a", "b", "c")
    assert len(only(story.submit("r1", prompt=3_000, new=96), fx.OpenRoute)[0].route) == 3
    effects = story.submit("r2", prompt=1_000, new=1)
    notice = only(effects, fx.NotifyQueued)[0]
    assert only(effects, fx.OpenRoute) == [] and (notice.position, notice.reason.code) == (
        1,
        "kv_full",
    )
    assert only(story.submit("r3", prompt=1, new=1), fx.OpenRoute) == []  # first come, first served
    opened = only(story.finish("r1"), fx.OpenRoute)
    assert [o.request_id for o in opened] == ["r2", "r3"]


def test_a_full_queue_refuses() -> None:
    story = Story(Limits(kv_tokens_min=1024, queue_max=2))
    story.submit("r1")
    story.submit("r2")
    assert ended(story.submit("r3")) == [("error", "queue_full")]


def test_a_request_submitted_twice_is_one_request() -> None:
    story = Story()
    story.submit("r1")
    assert story.submit("r1") == []
    assert story.core.state.counters.events_ignored == 1


def test_missing_layers_are_named_and_waited_for_so_long_and_no_longer() -> None:
    story = Story()
    story.start("a", "b", "c")
    lost = story.core.state.nodes[NodeId("b")].span
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    notice = only(story.submit("r1"), fx.NotifyQueued)[0]
    assert notice.reason.code == "layers_missing" and f"layers {lost} of" in notice.reason.message
    effects = story.wait(31_000, beating=("a", "c"))
    assert ended(effects) == [("error", "span_unavailable")]
    reason = only(effects, fx.EndRequest)[0].reason
    assert reason is not None and str(lost) in reason.message


def test_a_request_waits_its_limit_for_kv_and_hears_why() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1", prompt=4_000, new=96)
    story.tell(ev.RouteOpened(request_id=R1, epoch=1))
    story.submit("r2")
    assert ended(story.wait(29_000, beating=("a",))) == []
    assert ended(story.wait(2_000, beating=("a",))) == [("error", "kv_full")]


def test_a_broken_chain_goes_to_the_queues_head_and_avoids_the_blamed_node() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    first = only(story.submit("r1"), fx.OpenRoute)[0].route[0].node_id
    effects = broke(story, "r1", 1, first)
    opened = only(effects, fx.OpenRoute)[0]
    assert [type(e) for e in effects] == [fx.CloseRoute, fx.OpenRoute]
    assert opened.epoch == 2 and opened.route[0].node_id != first


def test_a_lonely_chain_is_tried_again_after_growing_pauses_then_given_up() -> None:
    story = Story(Limits(kv_tokens_min=1024, attempts_max=4))
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    for epoch, pause_ms in ((1, 500), (2, 1_000), (3, 2_000)):
        effects = broke(story, "r1", epoch, "a")
        assert only(effects, fx.NotifyQueued)[0].reason.code == "rerouting"
        assert only(story.wait(pause_ms - 1, beating=("a",)), fx.OpenRoute) == []
        assert only(story.wait(1, beating=("a",)), fx.OpenRoute)[0].epoch == epoch + 1
    assert ended(broke(story, "r1", 4, "a")) == [("error", "hop_broken")]
    assert story.core.state.nodes[NodeId("a")].kv_tokens_reserved == 0


def test_a_request_that_rests_lets_others_by() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    broke(story, "r1", 1, "a")
    assert len(only(story.submit("r2"), fx.OpenRoute)) == 1


def test_late_messages_of_an_old_epoch_change_nothing() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    first = only(story.submit("r1"), fx.OpenRoute)[0].route[0].node_id
    broke(story, "r1", 1, first)
    assert broke(story, "r1", 1, first) == []
    assert story.tell(ev.RouteOpened(request_id=R1, epoch=1)) == []
    assert story.tell(ev.FirstTokenSent(request_id=R1, epoch=1)) == []
    assert story.core.state.requests[R1].state == "opening"
    assert story.core.state.counters.events_ignored == 3


def test_a_last_token_counts_even_if_its_chain_has_broken_since() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    broke(story, "r1", 1, "a")
    last = ev.LastTokenSent(
        request_id=R1, epoch=1, finish_reason=FinishReason.STOP, num_generated=3
    )
    assert ended(story.tell(last)) == [("stop", "")]
    assert story.core.state.num_queued() == 0
    assert story.tell(last) == []


def test_a_chain_that_does_not_open_or_gives_no_token_breaks() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    first = only(story.submit("r1"), fx.OpenRoute)[0].route[0].node_id
    opened = only(story.wait(10_100, beating=("a", "b")), fx.OpenRoute)
    assert [o.epoch for o in opened] == [2] and opened[0].route[0].node_id != first
    story.tell(ev.RouteOpened(request_id=R1, epoch=2))
    opened = only(story.wait(181_000, beating=("a", "b")), fx.OpenRoute)
    assert [o.epoch for o in opened][:1] == [3]


def test_a_request_has_a_deadline_whatever_it_does() -> None:
    story = Story(Limits(kv_tokens_min=1024, request_limit_ms=5_000))
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    story.tell(ev.RouteOpened(request_id=R1, epoch=1), ev.FirstTokenSent(request_id=R1, epoch=1))
    effects = story.wait(5_100, beating=("a",))
    assert ended(effects) == [("error", "deadline_exceeded")]
    assert len(only(effects, fx.CloseRoute)) == 1


def test_a_cancelled_request_frees_every_stage_at_once() -> None:
    story = Story()
    story.start("a", "b", "c")
    story.submit("r1")
    effects = story.tell(ev.RequestCancelled(request_id=R1))
    closed = only(effects, fx.CloseRoute)[0]
    assert len(closed.route) == 3 and closed.finish_reason is FinishReason.CANCELLED
    assert ended(effects) == [("cancelled", "")]
    assert all(n.kv_tokens_reserved == 0 for n in story.core.state.nodes.values())
    assert story.tell(ev.RequestCancelled(request_id=R1)) == []


def test_what_a_request_had_generated_is_counted_however_it_ends() -> None:
    story = Story(Limits(kv_tokens_min=1024, attempts_max=1))
    story.start("a", "b", "c")
    story.submit("r1", prompt=10, new=30)
    story.tell(ev.RequestCancelled(request_id=R1, num_generated=12))
    story.submit("r2", prompt=10, new=30)
    reason = Reason(code="hop_broken", message="reset")
    end = ev.RouteBroke(
        request_id=RequestId("r2"), epoch=1, node_id=None, reason=reason, num_generated=5
    )
    assert ended(story.tell(end)) == [("error", "hop_broken")]
    view = story.core.view(story.now_ms)
    assert [(r.state, r.num_generated) for r in view.requests] == [("failed", 5), ("cancelled", 12)]
    assert view.counters.tokens_generated == 17


def test_a_node_that_left_keeps_its_name_while_a_request_names_it() -> None:
    story = Story(Limits(kv_tokens_min=1024, ended_max=1))
    story.start("a", "b", "c")
    story.submit("r1")
    story.finish("r1")
    node = next(iter(story.core.state.nodes.values()))
    story.tell(
        ev.NodeDrainAsked(
            node_id=node.node_id, incarnation=node.incarnation, reason="x", limit_ms=9
        ),
        ev.NodeDrained(node_id=node.node_id, incarnation=node.incarnation),
    )
    departed = story.core.view(story.now_ms).departed
    assert [(d.node_id, d.display_name) for d in departed] == [(node.node_id, node.display_name)]
    story.submit("r2")
    story.tell(ev.RequestCancelled(request_id=RequestId("r2")))  # the only one remembered now
    assert node.node_id not in {d.node_id for d in story.core.view(story.now_ms).departed}


def test_a_request_cancelled_in_the_queue_leaves_it() -> None:
    story = Story()
    story.submit("r1")
    assert ended(story.tell(ev.RequestCancelled(request_id=R1))) == [("cancelled", "")]
    assert story.core.state.num_queued() == 0


def test_a_token_opens_a_route_whose_opening_was_not_heard() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    story.tell(ev.FirstTokenSent(request_id=R1, epoch=1))
    assert story.core.state.requests[R1].state == "decode"
    story.tell(ev.RouteOpened(request_id=R1, epoch=1))
    assert story.core.state.counters.routes_opened == 1


def test_a_broken_hop_breaks_its_chains_and_rests() -> None:
    story = Story()
    story.start("a", "b", "c")
    route = only(story.submit("r1"), fx.OpenRoute)[0].route
    one, two = route[0].node_id, route[1].node_id
    effects = story.tell(ev.HopBroke(node_id=one, neighbour_id=two, reason="reset"))
    assert len(only(effects, fx.CloseRoute)) == 1 and only(effects, fx.OpenRoute) == []
    assert only(story.wait(4_900, beating=("a", "b", "c")), fx.OpenRoute) == []
    assert len(only(story.wait(200, beating=("a", "b", "c")), fx.OpenRoute)) == 1


def test_a_measured_way_ends_the_rest_of_a_hop() -> None:
    story = Story()
    story.start("a", "b", "c")
    route = only(story.submit("r1"), fx.OpenRoute)[0].route
    one, two = route[0].node_id, route[1].node_id
    story.tell(ev.HopBroke(node_id=one, neighbour_id=two, reason="reset"))
    story.wait(1_000, beating=("a", "b", "c"))
    measured = ev.NeighbourMeasured(
        node_id=two, neighbour_id=one, rtt_ms=1.0, bytes_per_s=0.0, is_reachable=True
    )
    assert len(only(story.tell(measured), fx.OpenRoute)) == 1


def test_a_pair_is_apart_only_when_neither_end_can_dial() -> None:
    story = Story()
    story.start("a", "b", "c")
    nodes = sorted(story.core.state.nodes.values(), key=lambda n: str(n.span).zfill(6))
    one, two = nodes[0].node_id, nodes[1].node_id

    def unreachable(a: NodeId, b: NodeId) -> ev.NeighbourMeasured:
        return ev.NeighbourMeasured(
            node_id=a, neighbour_id=b, rtt_ms=0.0, bytes_per_s=0.0, is_reachable=False
        )

    story.tell(unreachable(one, two))
    assert len(only(story.submit("r1"), fx.OpenRoute)) == 1
    story.tell(unreachable(two, one))
    effects = story.submit("r2")
    assert only(effects, fx.OpenRoute) == []
    assert only(effects, fx.NotifyQueued)[0].reason.code == "no_path"


def test_a_node_out_for_a_moment_does_not_make_a_request_too_large() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.tell(ev.GatewayLinkChanged(node_id=NodeId("a"), incarnation=1, is_up=False))
    effects = story.submit("r1", prompt=4_000, new=96)
    assert ended(effects) == [] and len(only(effects, fx.NotifyQueued)) == 1


def test_requests_spread_over_equal_chains() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    firsts = [only(story.submit(f"r{i}"), fx.OpenRoute)[0].route[0].node_id for i in range(4)]
    assert sorted(firsts) == ["a", "a", "b", "b"]


def test_what_broke_is_served_before_what_waited_behind_it() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1", prompt=3_000)
    story.submit("r2", prompt=3_000)
    link = ev.GatewayLinkChanged(node_id=NodeId("a"), incarnation=1, is_up=False)
    story.tell(link)
    story.wait(1_000, beating=("a",))
    effects = story.tell(ev.GatewayLinkChanged(node_id=NodeId("a"), incarnation=1, is_up=True))
    assert [o.request_id for o in only(effects, fx.OpenRoute)] == ["r1"]


def test_keys_share_what_there_is_and_batch_work_waits_behind_people() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1", prompt=4_000, new=96, key="greedy")
    for name in ("r2", "r3"):
        story.submit(name, prompt=4_000, new=96, key="greedy")
    story.submit("r4", prompt=4_000, new=96, key="modest", slo=SloClass.BATCH)
    story.submit("r5", prompt=4_000, new=96, key="modest")
    served = []
    for name in ("r1", "r2", "r5", "r3", "r4"):
        opened = only(story.finish(name), fx.OpenRoute)
        served += [o.request_id for o in opened]
    assert served == ["r2", "r5", "r3", "r4"]


def test_a_batch_request_ages_into_its_turn() -> None:
    story = Story(Limits(kv_tokens_min=1024, ageing_ms=5_000))
    story.start("a", memory_mib=2_000)
    story.submit("r1", prompt=4_000, new=96)
    story.submit("r2", prompt=4_000, new=96, slo=SloClass.BATCH)
    story.submit("r3", prompt=4_000, new=96)
    story.wait(6_000, beating=("a",))
    assert [o.request_id for o in only(story.finish("r1"), fx.OpenRoute)] == ["r2"]


def test_whoever_waits_for_kv_is_told_about_how_long() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1", prompt=4_000, new=96)
    notice = only(story.submit("r2", prompt=4_000, new=96), fx.NotifyQueued)[0]
    assert notice.position == 1 and notice.reason.message.endswith(" s")
    assert "; about " in notice.reason.message
