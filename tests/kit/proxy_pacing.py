"""When bytes that enter a link come out of it. Pure: the time is an argument.

A direction of a link has a rate (a token bucket, shared by all its connections), a delay and a
jitter. Order is kept within a connection, as TCP keeps it: jitter never lets bytes overtake.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

SEGMENT_BYTES: Final = 4 << 10
"""Bytes that travel as one where there is a rate, so that a large write comes out bit by bit."""
BURST_BYTES: Final = 16 << 10
UNPACED_BYTES_MAX: Final = 16 << 20
BUFFER_S: Final = 0.1
"""A router in front of a slow link holds this much more than what is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Of one direction. `jitter_ms` is the most that is added to `delay_ms`, evenly drawn;
    `bytes_per_s` None: no limit. `is_cut`: what enters is lost, and nobody is told."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    bytes_per_s: float | None = None
    burst_bytes: int = BURST_BYTES
    is_cut: bool = False

    def __post_init__(self) -> None:
        if self.delay_ms < 0 or self.jitter_ms < 0 or self.burst_bytes < 0:
            raise ValueError(f"delays and bursts are not negative: {self}")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ValueError("a rate is above 0; use is_cut for a way that carries nothing")


class Pacer:
    """One direction of a link, for all of its connections. `rng` draws the jitter."""

    def __init__(self, conditions: Conditions, rng: random.Random) -> None:
        self.conditions = conditions
        self._rng = rng
        self._free_s = float("-inf")

    def change(self, **changes: float | bool | None) -> None:
        """From now on; what is under way keeps its time. Names are those of `Conditions`."""
        self.conditions = replace(self.conditions, **changes)  # type: ignore[arg-type]

    @property
    def bytes_max(self) -> int:
        """Bytes of a connection that may be under way; beyond, its sender has to wait."""
        conditions = self.conditions
        if conditions.bytes_per_s is None:
            return UNPACED_BYTES_MAX
        held_s = BUFFER_S + (conditions.delay_ms + conditions.jitter_ms) / 1e3
        return conditions.burst_bytes + round(conditions.bytes_per_s * held_s)

    def segments(self, data: bytes) -> Iterator[bytes]:
        """The parts that travel as one."""
        if self.conditions.bytes_per_s is None:
            yield data
            return
        for start in range(0, len(data), SEGMENT_BYTES):
            yield data[start : start + SEGMENT_BYTES]

    def due_s(self, now_s: float, num_bytes: int) -> float:
        """When bytes that enter now come out at the far end; takes them from the bucket."""
        conditions = self.conditions
        out_s = now_s
        if conditions.bytes_per_s is not None:
            full_s = now_s - conditions.burst_bytes / conditions.bytes_per_s
            self._free_s = max(self._free_s, full_s) + num_bytes / conditions.bytes_per_s
            out_s = max(now_s, self._free_s)
        travel_ms = conditions.delay_ms
        if conditions.jitter_ms:
            travel_ms += self._rng.uniform(0.0, conditions.jitter_ms)
        return out_s + travel_ms / 1e3
