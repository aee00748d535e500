"""How requests end, as stories."""

import pytest

from node.core import effects as ef
from node.core import events as ev
from node.core.messages import (
    Broken,
    Close,
    StatusCode,
)
from node.core.state import Limits
from plait.types import FinishReason, Reason
from tests.unit.node.story import (
    A,
    B,
    C,
    Story,
    broken_code,
    only,
    rid,
    sent,
    to_gateway,
)


def test_close_frees_and_travels_on_once() -> None:
    story = Story(1)
    story.open()
    effects = story.close(sender=A)
    assert [n for n, _ in sent(effects, Close)] == [C]
    assert only(effects, ef.ReleaseKv) == [ef.ReleaseKv(rid(), 1)]
    assert story.close(sender=A) == []


def test_close_of_a_newer_attempt_ends_the_older_one_for_good() -> None:
    story = Story(1)
    story.open(epoch=1)
    story.close(sender=A, epoch=3)
    assert story.open(epoch=3) == []
    assert only(story.open(epoch=4), ef.ReserveKv)


def test_close_of_an_older_attempt_leaves_the_newer_one() -> None:
    story = Story(1)
    story.open(epoch=2)
    assert story.close(sender=A, epoch=1) == []
    assert story.core.num_sessions == 1


def test_only_the_stage_before_and_the_gateway_may_close() -> None:
    story = Story(1)
    story.open()
    assert story.close(sender=C) == []
    assert story.core.counters.frames_foreign == 1
    assert story.close(sender=None) != []


def test_a_close_that_overtakes_its_open_wins() -> None:
    story = Story(0)
    story.close(sender=None)
    assert story.open() == []
    assert story.core.counters.frames_late == 1


def broken_by(node: str) -> Broken:
    return Broken(
        request_id=rid(),
        epoch=1,
        stage_index=2,
        node_id=C if node == "c" else B,
        code=StatusCode.UNAVAILABLE,
        reason=Reason(code="kv_full", message="..."),
    )


def test_a_broken_chain_is_told_backwards_and_the_first_stage_tells_the_gateway() -> None:
    middle, first = Story(1), Story(0)
    middle.open()
    effects = middle.tell(ev.BrokenReceived(C, broken_by("c")))
    assert sent(effects, Broken) == [(A, broken_by("c"))]
    assert only(effects, ef.ReleaseKv)
    first.open()
    effects = first.tell(ev.BrokenReceived(B, broken_by("c")))
    assert to_gateway(effects, Broken) == [broken_by("c")]


def test_only_the_next_stage_may_break_a_request() -> None:
    story = Story(1)
    story.open()
    assert story.tell(ev.BrokenReceived(A, broken_by("c"))) == []
    assert story.core.num_sessions == 1


@pytest.mark.parametrize(
    ("index", "lost", "breaks"),
    [
        (1, A, True),
        (1, C, True),
        (0, C, True),
        (2, A, True),
        (0, B, True),
    ],
)
def test_a_lost_link_breaks_what_ran_over_it_and_names_the_neighbour(
    index: int, lost: object, breaks: bool
) -> None:
    story = Story(index)
    story.open()
    neighbour = next(n for n in (A, B, C) if n == lost)
    effects = story.tell(ev.LinkDown(neighbour, "reset"))
    (broken,) = to_gateway(effects, Broken)
    assert (broken.node_id, broken.code, broken.reason.code) == (
        lost,
        StatusCode.UNAVAILABLE,
        "hop_lost",
    )
    assert lost not in [e.neighbour_id for e in only(effects, ef.Send)]
    assert only(effects, ef.ReportHopBroken) == [ef.ReportHopBroken(neighbour, "reset")]


def test_a_lost_link_leaves_other_requests_alone() -> None:
    story = Story(1)
    story.open()
    effects = story.tell(ev.LinkDown(B, "not in this chain"))
    assert only(effects, ef.ReleaseKv) == []


def test_a_choked_link_costs_the_request_that_chokes_it() -> None:
    story = Story(1)
    story.open()
    effects = story.tell(ev.SendRefused(neighbour_id=C, request_id=rid(), epoch=1))
    assert broken_code(effects) == "link_overloaded"
    assert [n for n, _ in sent(effects, Broken)] == [A]


def test_an_idle_request_is_given_up() -> None:
    story = Story(1, limits=Limits(session_idle_ms=2_000))
    story.open()
    assert only(story.later(1_999), ef.ReleaseKv) == []
    assert broken_code(story.later(600)) == "session_idle"


def test_requests_outlive_the_control_stream_until_their_tickets_end() -> None:
    story = Story(1, limits=Limits(session_idle_ms=10_000_000))
    story.open()
    story.tell(ev.ControlDetached())
    assert only(story.later(599_000), ef.ReleaseKv) == []
    assert broken_code(story.later(2_000)) == "ticket_expired"


def test_while_attached_a_request_outlives_its_ticket() -> None:
    story = Story(1, limits=Limits(session_idle_ms=10_000_000))
    story.open()
    assert only(story.later(700_000), ef.ReleaseKv) == []


def test_a_lost_gateway_ends_its_requests_after_a_grace() -> None:
    story = Story(2, limits=Limits(gateway_grace_ms=3_000))
    story.open()
    story.tell(ev.GatewayLinkDown())
    assert only(story.later(2_000), ef.ReleaseKv) == []
    story.tell(ev.GatewayLinkUp())
    assert only(story.later(2_000), ef.ReleaseKv) == []
    story.tell(ev.GatewayLinkDown())
    assert broken_code(story.later(3_000)) == "gateway_lost"


def test_open_requests_are_bounded() -> None:
    story = Story(1, limits=Limits(sessions_max=1))
    story.open()
    ((_, broken),) = sent(story.open(request="r2"), Broken)
    assert (broken.code, broken.reason.code) == (StatusCode.RESOURCE_EXHAUSTED, "sessions_full")


def test_memory_of_ended_requests_is_bounded() -> None:
    story = Story(1, limits=Limits(epochs_remembered_max=2))
    for name in ("r1", "r2", "r3"):
        story.open(request=name)
        story.tell(
            ev.CloseReceived(sender=A, request_id=rid(name), epoch=1, reason=FinishReason.CANCELLED)
        )
    assert story.open(request="r3") == []
    assert only(story.open(request="r1"), ef.ReserveKv), "forgotten by the core; tickets remember"


def test_a_middle_stage_needs_no_gateway() -> None:
    story = Story(1, limits=Limits(gateway_grace_ms=3_000))
    story.open()
    story.tell(ev.GatewayLinkDown())
    assert only(story.later(10_000), ef.ReleaseKv) == []
