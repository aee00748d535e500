"""Clocks of machines in virtual time: durations agree, the time of day need not."""

from tests.sim.clockwork import Clockwork

EPOCH_MS = 1_700_000_000_000


class Wall:
    """A `plait.clock.Clock` whose time of day is off by so much."""

    def __init__(self, clock: Clockwork, offset_ms: int = 0) -> None:
        self._clock = clock
        self._offset_ms = offset_ms

    def jump(self, num_ms: int) -> None:
        """Somebody sets the clock."""
        self._offset_ms += num_ms

    def monotonic_ms(self) -> int:
        return self._clock.now_ms

    def unix_ms(self) -> int:
        return EPOCH_MS + self._clock.now_ms + self._offset_ms
