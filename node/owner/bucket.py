"""A token bucket: how fast bytes may pass. The same for frames and for weights."""

import threading
from collections.abc import Callable
from typing import Final

BURST_S: Final = 0.25
"""What an idle link may send at once, as time at the full rate."""

WIRE_SHARE: Final = 1.035
FRAME_BYTES: Final = 60
"""TLS, HTTP/2, TCP and IP around a frame: a share of it, and bytes for each."""


class TokenBucket:
    """Bytes may pass while the level is not below 0; passing lowers it, time fills it up.

    A frame passes as a whole, so the level may fall below 0; over any time t at most
    rate * (t + BURST_S) bytes and one frame have passed. Safe in several threads.
    """

    def __init__(self, bytes_per_s: float, now_s: Callable[[], float]) -> None:
        self.bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._burst = bytes_per_s * BURST_S
        self._level = self._burst
        self._filled_s = now_s()
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Until the next frame may pass; 0 where it may now."""
        with self._lock:
            self._fill()
            return max(0.0, -self._level / self.bytes_per_s)

    def take(self, num_bytes: float) -> None:
        """Bytes have passed."""
        with self._lock:
            self._fill()
            self._level -= num_bytes

    def _fill(self) -> None:
        now_s = self._now_s()
        passed_s = max(0.0, now_s - self._filled_s)
        self._level = min(self._burst, self._level + passed_s * self.bytes_per_s)
        self._filled_s = now_s


def wire_bytes(num_bytes: int) -> float:
    """What a frame of so many bytes takes of a link."""
    return num_bytes * WIRE_SHARE + FRAME_BYTES
