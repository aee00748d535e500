"""Tickets are dated by the coordinator's clock, whatever a node's says and whoever sets it."""

import pytest

from node.agent.network_time import TRIP_MS_MAX, NetworkTime
from plait.clock import SET_MS, ManualClock, SteadyClock

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class Two:
    """A coordinator and a node whose clock is off by so much."""

    def __init__(self, ahead_ms: int) -> None:
        self.coordinator = ManualClock()
        self.own = ManualClock()
        self.own.set(ahead_ms)
        self.time = NetworkTime(self.own)

    def attach(self, *, trip_ms: int = 0) -> int:
        self.pass_by(trip_ms // 2)
        said_ms = self.coordinator.unix_ms()
        self.pass_by(trip_ms - trip_ms // 2)
        return self.time.heard(said_ms, trip_ms=trip_ms)

    def pass_by(self, num_ms: int) -> None:
        self.coordinator.advance(num_ms)
        self.own.advance(num_ms)

    @property
    def error_ms(self) -> int:
        return self.time.unix_ms() - self.coordinator.unix_ms()


@pytest.mark.parametrize("ahead_ms", [0, 10 * MINUTE_MS, -10 * MINUTE_MS])
def test_what_the_coordinator_says_counts(ahead_ms: int) -> None:
    two = Two(ahead_ms)
    assert two.error_ms == ahead_ms, "nothing was said yet"
    assert two.attach(trip_ms=200) == ahead_ms
    two.pass_by(24 * HOUR_MS)
    assert two.error_ms == 0


def test_a_clock_that_is_set_changes_nothing() -> None:
    two = Two(10 * MINUTE_MS)
    two.attach()
    for step_ms in (-HOUR_MS, 50 * MINUTE_MS):
        two.pass_by(MINUTE_MS)
        two.own.set(step_ms)
        assert two.error_ms == 0
    assert two.attach() == 0, "by now the machine's own is right"
    assert two.error_ms == 0


def test_a_clock_that_drifts_or_is_corrected_a_little_is_followed() -> None:
    own = ManualClock()
    steady = SteadyClock(own)
    for _ in range(10):
        before_ms = steady.unix_ms()
        own.advance(HOUR_MS)
        own.set(SET_MS)
        assert steady.unix_ms() == before_ms + HOUR_MS + SET_MS
    own.set(SET_MS + 1)
    assert steady.unix_ms() == before_ms + HOUR_MS + SET_MS
    assert steady.monotonic_ms() == own.monotonic_ms()


def test_a_word_that_took_too_long_or_was_never_said_counts_for_nothing() -> None:
    two = Two(10 * MINUTE_MS)
    two.attach(trip_ms=TRIP_MS_MAX + 1)
    two.time.heard(0, trip_ms=0)  # an older coordinator
    assert two.error_ms == 10 * MINUTE_MS
    two.attach()
    two.attach(trip_ms=TRIP_MS_MAX + 1)
    assert two.error_ms == 0, "what was known before stays"


def test_a_coordinator_that_was_ahead_and_is_right_again_says_so_by_its_time() -> None:
    two, called = Two(0), list[int]()
    two.time.on_earlier = lambda: called.append(two.time.unix_ms())
    two.coordinator.set(HOUR_MS)
    two.attach()
    two.pass_by(MINUTE_MS)
    two.attach(trip_ms=100)
    assert not called
    two.coordinator.set(-HOUR_MS)
    two.attach()
    assert called == [two.coordinator.unix_ms()]
