"""Who speaks for a node, and what a flood or a copied identity is worth."""

from coordinator.shell.reports import Attachment
from coordinator.shell.sessions import (
    REPORTS_BURST,
    REPORTS_PER_S,
    TAKEOVER_WINDOW_MS,
    TAKEOVERS_MAX,
    Admission,
    NodeSession,
    Pace,
    Sessions,
)
from plait.clock import ManualClock
from plait.types import NodeId


def session(incarnation: int, name: str = "n1") -> NodeSession:
    return NodeSession(
        Attachment(node_id=NodeId(name), incarnation=incarnation, display_name=name, addresses=())
    )


def test_the_newest_incarnation_speaks_and_its_own_second_stream_replaces_the_first() -> None:
    sessions = Sessions(ManualClock())
    first, again, older, newer = session(5), session(5), session(4), session(6)
    assert sessions.admit(first) == (Admission.ADMITTED, None)
    assert sessions.admit(again) == (Admission.ADMITTED, first)
    assert sessions.admit(older) == (Admission.OLDER, None)
    assert sessions.admit(newer) == (Admission.ADMITTED, again)
    assert not sessions.remove(again)
    assert sessions.current(NodeId("n1")) is newer
    assert sessions.remove(newer) and len(sessions) == 0


def test_an_identity_that_two_processes_take_from_each_other_is_suspended_for_a_while() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    for incarnation in range(1, TAKEOVERS_MAX + 2):
        assert sessions.admit(session(incarnation))[0] is Admission.ADMITTED
        clock.advance(1_000)
    last = sessions.current(NodeId("n1"))
    assert sessions.admit(session(9)) == (Admission.SUSPENDED, last)
    assert sessions.current(NodeId("n1")) is None
    assert sessions.admit(session(10)) == (Admission.SUSPENDED, None)
    assert sessions.admit(session(1, "n2"))[0] is Admission.ADMITTED
    clock.advance(TAKEOVER_WINDOW_MS)
    assert sessions.admit(session(11))[0] is Admission.ADMITTED


def test_restarts_of_one_process_are_no_takeovers() -> None:
    sessions = Sessions(ManualClock())
    for incarnation in range(1, 20):
        one = session(incarnation)
        assert sessions.admit(one) == (Admission.ADMITTED, None)
        sessions.remove(one)


def test_who_reports_too_often_is_read_at_the_allowed_pace() -> None:
    pace, now_ms = Pace(), 0
    assert all(pace.delay_ms(now_ms) == 0 for _ in range(REPORTS_BURST))
    num_reports = 10 * REPORTS_PER_S
    for _ in range(num_reports):
        now_ms += pace.delay_ms(now_ms)
    assert 9_000 <= now_ms <= 12_000
    assert pace.delay_ms(now_ms + 60_000) == 0
