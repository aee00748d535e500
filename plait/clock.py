"""The only place that reads a clock. Everything else takes a Clock, or `now_ms` as an argument."""

import time
from typing import Final, Protocol

SET_MS: Final = 30_000
"""What a time of day is off by between two readings, against what has passed, when somebody set it.
Less is drift."""


class Clock(Protocol):
    """Two clocks: one to measure with, one to stamp with."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some start; never goes back. For durations, leases, deadlines."""
        ...

    def unix_ms(self) -> int:
        """Wall-clock milliseconds since 1970. For tickets, certificates and what people read."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SteadyClock:
    """A clock's time of day, but for jumps: as if nobody had set it since the first reading."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_at: tuple[int, int] | None = None
        self._jumped_ms = 0

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def unix_ms(self) -> int:
        unix_ms, now_ms = self._clock.unix_ms(), self._clock.monotonic_ms()
        if self._read_at is not None:
            step_ms = (unix_ms - self._read_at[0]) - (now_ms - self._read_at[1])
            if abs(step_ms) > SET_MS:
                self._jumped_ms += step_ms
        self._read_at = unix_ms, now_ms
        return unix_ms - self._jumped_ms


class ManualClock:
    """A clock that moves when it is told to; for tests and simulation."""

    def __init__(self, now_ms: int = 0, unix_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._unix_ms = unix_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    def unix_ms(self) -> int:
        return self._unix_ms

    def advance(self, delta_ms: int) -> None:
        """Move both clocks forward by `delta_ms` milliseconds."""
        self._now_ms += delta_ms
        self._unix_ms += delta_ms

    def set(self, delta_ms: int) -> None:
        """Somebody sets the time of day."""
        self._unix_ms += delta_ms
