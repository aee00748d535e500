"""How fast this node sends and receives, over all its streams, and how much it has.

Sending waits before a frame is chosen, so that tokens go on overtaking prompts. Flow control never
waits. Receiving is slowed by giving credit later: what is read at once is taken at once, and no
ping waits behind a prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass

from node.owner.bucket import TokenBucket, wire_bytes


@dataclass(slots=True)
class TrafficTotals:
    """Bytes of frames since the start, all streams together."""

    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def all_bytes(self) -> int:
        """Both ways."""
        return self.sent_bytes + self.received_bytes


class Pace:
    """Shared by all streams of a node. Rates in bytes/s; None: unlimited.

    Bulk rows wait for both buckets, everything else for its own: tokens alone may use the whole
    rate, and prompts what they leave.
    """

    def __init__(
        self,
        *,
        now_s: Callable[[], float],
        up_bytes_per_s: float | None = None,
        down_bytes_per_s: float | None = None,
    ) -> None:
        self.totals = TrafficTotals()
        self.up_bytes_per_s = up_bytes_per_s
        self._all = TokenBucket(up_bytes_per_s, now_s) if up_bytes_per_s else None
        self._quick = TokenBucket(up_bytes_per_s, now_s) if up_bytes_per_s else None
        self._down = TokenBucket(down_bytes_per_s, now_s) if down_bytes_per_s else None
        self._turns: list[object] = []

    def quick_wait_s(self) -> float:
        """Until a frame of a few rows may go; 0: now."""
        return self._quick.wait_s() if self._quick is not None else 0.0

    def bulk_wait_s(self, stream: object) -> float:
        """Until a prompt's rows may go on `stream`; 0: now. Streams take turns."""
        if self._all is None:
            return 0.0
        if stream not in self._turns:
            self._turns.append(stream)
        wait_s = max(self._all.wait_s(), self.quick_wait_s())
        if wait_s > 0.0:
            return wait_s
        return 0.0 if self._turns[0] is stream else 0.001

    def spare_wait_s(self) -> float:
        """Until bytes may go that nobody waits for with a request: behind tokens and prompts."""
        if self._all is None:
            return 0.0
        wait_s = max(self._all.wait_s(), self.quick_wait_s())
        return max(wait_s, 0.01) if self._turns else wait_s

    def leave(self, stream: object) -> None:
        """`stream` has no rows that may go: the next one's turn."""
        if stream in self._turns:
            self._turns.remove(stream)

    def sent(self, num_bytes: int, *, is_bulk: bool = False) -> None:
        """A frame is on its way."""
        self.totals.sent_bytes += num_bytes
        if self._all is not None and self._quick is not None:
            self._all.take(wire_bytes(num_bytes))
            if not is_bulk:
                self._quick.take(wire_bytes(num_bytes))

    def received(self, num_bytes: int) -> None:
        """A frame has come."""
        self.totals.received_bytes += num_bytes
        if self._down is not None:
            self._down.take(wire_bytes(num_bytes))

    def credit_wait_s(self) -> float:
        """Until the far end may be told to send more; 0: now."""
        return self._down.wait_s() if self._down is not None else 0.0
