"""What a node holds and how it leaves, as stories."""

import pytest

from node.core import effects as ef
from node.core import events as ev
from node.core.machines import NODE_TABLE, NodeState, NodeTrigger, next_node_state
from node.core.messages import Broken, StatusCode
from node.core.state import Limits
from plait.errors import IllegalTransition
from plait.types import LayerSpan, Reason
from tests.unit.node.story import (
    SOURCE,
    SPEC,
    Story,
    assign,
    broken_code,
    held,
    only,
    sent,
    to_gateway,
)

SPAN = LayerSpan(2, 4)
OTHER = LayerSpan(0, 4)


def test_a_span_is_loaded_reported_and_served() -> None:
    story = Story(1, is_serving=False)
    story.attach()
    (load,) = only(story.tell(assign(SPAN, kv=7)), ef.LoadSpan)
    assert (load.spec, load.source, load.span, load.kv_tokens_min) == (SPEC, SOURCE, SPAN, 7)
    assert story.core.state == "loading"
    assert story.tell(ev.SpanLoaded(held(SPAN))) == [ef.ReportSpanLoaded(held(SPAN))]
    assert story.core.state == "serving"


def test_what_is_held_already_is_confirmed_and_keeps_serving() -> None:
    story = Story(1)
    story.open()
    effects = story.tell(assign(SPAN, epoch=2))
    assert effects == [ef.ReportSpanLoaded(held(SPAN, epoch=2))]
    assert story.core.num_sessions == 1


def test_a_demand_for_more_kv_loads_anew() -> None:
    story = Story(1)
    assert only(story.tell(assign(SPAN, epoch=2, kv=1001)), ef.LoadSpan)


def test_other_layers_break_what_runs_and_load() -> None:
    story = Story(1)
    story.open()
    effects = story.tell(assign(OTHER, epoch=2))
    assert broken_code(effects) == "span_reassigned"
    assert only(effects, ef.LoadSpan)[0].span == OTHER
    assert story.core.held is None


def test_the_latest_assignment_wins_over_a_load_under_way() -> None:
    story = Story(1, is_serving=False)
    story.attach()
    story.tell(assign(SPAN, epoch=1))
    assert story.tell(assign(OTHER, epoch=2)) == []
    (load,) = only(story.tell(ev.SpanLoaded(held(SPAN, epoch=1))), ef.LoadSpan)
    assert load.allocation_epoch == 2
    story.tell(ev.SpanLoaded(held(OTHER, epoch=2)))
    assert story.core.state is NodeState.SERVING


def test_a_newer_plan_for_the_layers_being_loaded_needs_no_second_load() -> None:
    story = Story(1, is_serving=False)
    story.attach()
    story.tell(assign(SPAN, epoch=1))
    story.tell(assign(SPAN, epoch=2))
    effects = story.tell(ev.SpanLoaded(held(SPAN, epoch=1)))
    assert effects == [ef.ReportSpanLoaded(held(SPAN, epoch=2))]


def test_a_failed_load_is_reported_and_the_node_waits() -> None:
    story = Story(1, is_serving=False)
    story.attach()
    story.tell(assign(SPAN))
    reason = Reason(code="weights_corrupt", message="...")
    failed = ev.SpanLoadFailed(1, StatusCode.FAILED_PRECONDITION, reason)
    effects = story.tell(failed)
    assert effects == [ef.ReportLoadFailed(1, StatusCode.FAILED_PRECONDITION, reason)]
    assert story.core.state is NodeState.JOINING
    assert only(story.tell(assign(SPAN, epoch=2)), ef.LoadSpan)


def test_a_failed_load_is_followed_by_the_newer_assignment() -> None:
    story = Story(1, is_serving=False)
    story.attach()
    story.tell(assign(SPAN, epoch=1))
    story.tell(assign(OTHER, epoch=2))
    reason = Reason(code="memory_full", message="...")
    effects = story.tell(ev.SpanLoadFailed(1, StatusCode.RESOURCE_EXHAUSTED, reason))
    assert only(effects, ef.LoadSpan)[0].span == OTHER


@pytest.mark.parametrize("event", [assign(SPAN, model="other"), assign(LayerSpan(4, 7))])
def test_layers_that_were_never_offered_are_refused(event: ev.SpanAssigned) -> None:
    story = Story(1, is_serving=False)
    story.attach()
    (failed,) = only(story.tell(event), ef.ReportLoadFailed)
    assert failed.reason.code == "model_not_found"
    assert story.core.state is NodeState.JOINING


def test_standing_by_frees_everything() -> None:
    story = Story(1)
    story.open()
    effects = story.tell(ev.SpanUnassigned(2))
    assert only(effects, ef.UnloadSpan)
    assert broken_code(effects) == "span_reassigned"
    assert story.core.state is NodeState.JOINING


def test_standing_by_during_a_load_frees_it_at_its_end() -> None:
    story = Story(1, is_serving=False)
    story.attach()
    story.tell(assign(SPAN))
    assert story.tell(ev.SpanUnassigned(2)) == []
    assert story.tell(ev.SpanLoaded(held(SPAN))) == [ef.UnloadSpan()]


def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    story = Story(1)
    story.open()
    assert story.tell(ev.StopAsked("sigterm")) == [ef.ReportDrainAsked("sigterm", 10_000)]
    ((_, broken),) = sent(story.open(request="r2"), Broken)
    assert broken.reason.code == "node_draining"
    assert only(story.rows(0, 4), ef.SubmitRows), "what runs goes on"
    effects = story.close(sender=story.before)
    assert only(effects, ef.ReportDrained)
    assert only(effects, ef.Exit)[0].code == 0
    assert story.core.state is NodeState.GONE


def test_draining_ends_at_its_limit() -> None:
    story = Story(1, limits=Limits(drain_ms=2_000))
    story.open()
    story.tell(ev.StopAsked("sigterm"))
    assert only(story.later(1_500), ef.Exit) == []
    effects = story.later(600)
    assert broken_code(effects) == "node_draining"
    assert only(effects, ef.Exit)[0].code == 0


def test_a_pause_has_a_limit_of_its_own_which_the_coordinator_hears() -> None:
    story = Story(1, limits=Limits(drain_ms=60_000))
    story.open()
    said = story.tell(ev.StopAsked("paused: battery", limit_ms=2_500))
    assert said == [ef.ReportDrainAsked("paused: battery", 2_500)]
    assert only(story.later(2_000), ef.Exit) == []
    assert only(story.later(600), ef.Exit)


def test_the_tighter_of_two_drain_limits_holds() -> None:
    story = Story(1, limits=Limits(drain_ms=60_000))
    story.open()
    story.tell(ev.StopAsked("sigterm"))
    story.tell(ev.DrainOrdered(1_000))
    assert only(story.later(1_500), ef.Exit)


def test_a_node_with_nothing_to_finish_leaves_at_once() -> None:
    assert only(Story(1).tell(ev.StopAsked("sigint")), ef.Exit)
    assert only(Story(1, is_serving=False).tell(ev.StopAsked("sigint")), ef.Exit)


def test_a_drain_is_announced_again_on_attaching() -> None:
    story = Story(1)
    story.open()
    story.tell(ev.ControlDetached())
    assert story.tell(ev.StopAsked("sigterm")) == []
    assert story.attach() == [ef.ReportDrainAsked("stopping", 10_000)]


def test_draining_ignores_the_plan() -> None:
    story = Story(1)
    story.open()
    story.tell(ev.DrainOrdered(0))
    assert story.tell(assign(OTHER, epoch=2)) == []
    assert story.tell(ev.SpanUnassigned(3)) == []


def test_an_evicted_node_drops_its_requests_and_may_come_back() -> None:
    story = Story(1)
    story.open()
    reason = Reason(code="lease_lost", message="...")
    effects = story.tell(ev.Evicted(reason=reason, may_rejoin=True))
    assert broken_code(effects) == "node_evicted"
    assert only(effects, ef.Exit) == []
    assert story.core.held is not None


def test_a_node_evicted_for_good_exits_with_the_reason() -> None:
    story = Story(1)
    reason = Reason(code="banned", message="...")
    effects = story.tell(ev.Evicted(reason=reason, may_rejoin=False))
    assert only(effects, ef.Exit) == [ef.Exit(3, reason)]
    assert story.tell(ev.Evicted(reason=reason, may_rejoin=False)) == []


def test_nothing_is_reported_while_detached() -> None:
    story = Story(1)
    story.tell(ev.ControlDetached())
    assert only(story.tell(ev.LinkDown(story.before, "reset")), ef.ReportHopBroken) == []


def test_every_state_can_be_left_and_gone_is_final() -> None:
    for state in NodeState:
        leaves = {(s, t) for s, t in NODE_TABLE if s is state}
        assert bool(leaves) == (state is not NodeState.GONE)
    with pytest.raises(IllegalTransition):
        next_node_state(NodeState.GONE, NodeTrigger.ASSIGN)


def test_a_broken_session_of_a_reassigned_node_is_retryable() -> None:
    story = Story(1)
    story.open()
    (broken,) = to_gateway(story.tell(assign(OTHER, epoch=2)), Broken)
    assert broken.code is StatusCode.UNAVAILABLE
