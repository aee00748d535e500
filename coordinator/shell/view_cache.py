"""One snapshot of the network for all viewers, made at most a few times a second."""

from typing import Final

from coordinator.core.view import NetworkView
from coordinator.shell.loop import CorePort
from plait.clock import Clock

REFRESH_MS: Final = 250


class ViewCache:
    """Implements `coordinator.ports.ViewSource`. Reads the core on the loop's own thread only."""

    def __init__(self, core: CorePort, clock: Clock, *, refresh_ms: int = REFRESH_MS) -> None:
        self._core = core
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._view: NetworkView | None = None
        self._made_ms = 0

    def view(self) -> NetworkView:
        """The snapshot of the last `refresh_ms`, or a fresh one."""
        now_ms = self._clock.monotonic_ms()
        if self._view is None or now_ms - self._made_ms >= self._refresh_ms:
            self._view = self._core.view(now_ms)
            self._made_ms = now_ms
        return self._view
