"""The coordinator's time of day: what tickets are dated by, whatever this machine's clock says."""

from collections.abc import Callable
from typing import Final

from plait.clock import Clock, SteadyClock
from plait.crypto.tickets import SKEW_MS

TRIP_MS_MAX: Final = 10_000
"""A welcome that took longer says too little of the time."""


class NetworkTime:
    """A `plait.clock.Clock`: this machine's until a coordinator has said what time it is, and from
    then on the coordinator's. Setting this machine's clock changes nothing in it."""

    def __init__(self, clock: Clock) -> None:
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when the coordinator says that it is earlier than it said before."""
        self._was_told = False
        self._own = clock
        self._clock = SteadyClock(clock)
        self._ahead_ms = 0

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def unix_ms(self) -> int:
        return self._clock.unix_ms() - self._ahead_ms

    def heard(self, unix_ms: int, *, trip_ms: int) -> int:
        """The coordinator said that it is `unix_ms`, in answer to what was sent `trip_ms` ago. How
        far this machine's clock is ahead (behind: below 0), in ms; 0 where that says nothing."""
        if unix_ms <= 0 or trip_ms > TRIP_MS_MAX:
            return 0
        before_ms = self.unix_ms()
        self._clock = SteadyClock(self._own)
        self._ahead_ms = self._clock.unix_ms() - unix_ms - trip_ms // 2
        if self._was_told and before_ms - self.unix_ms() > SKEW_MS:
            self.on_earlier()
        self._was_told = True
        return self._ahead_ms
