"""The only place that reads a clock. Everything else takes a Clock, or `now_ms` as an argument."""

import time
from typing import Protocol


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
