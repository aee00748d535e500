"""One snapshot of the network for all viewers, made at most a few times a second."""

from typing import Final

from coordinator.core.view import NetworkView
from coordinator.shell.loop import CorePort
from plait.clock import Clock

REFRESH_MS: Final = 250
PAUSES_MIN: Final = 12
"""A view rests so many times as long as it took to make: those of large networks are older, and
never take more than a twelfth of the loop's time."""

OLDEST_MS: Final = 3_000


class ViewCache:
    """Implements `coordinator.ports.ViewSource`. Reads the core on the loop's own thread only."""

    def __init__(self, core: CorePort, clock: Clock, *, refresh_ms: int = REFRESH_MS) -> None:
        self._core = core
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._view: NetworkView | None = None
        self._good_until_ms = 0

    def view(self) -> NetworkView:
        """The snapshot of the last `refresh_ms`, or a fresh one."""
        now_ms = self._clock.monotonic_ms()
        if self._view is None or now_ms >= self._good_until_ms:
            self._view = self._core.view(now_ms)
            took_ms = self._clock.monotonic_ms() - now_ms
            rest_ms = min(OLDEST_MS, PAUSES_MIN * took_ms)
            self._good_until_ms = now_ms + max(self._refresh_ms, rest_ms)
        return self._view
