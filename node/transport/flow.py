"""What waits to be sent on one way to a neighbour, and how much of it may be under way."""

import asyncio
from collections import deque
from dataclasses import dataclass

from node.core.messages import Activations, LinkMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Bounds of one direction of a stream. Seconds where the name says so."""

    window_frames: int = 64
    credit_batch_frames: int = 16
    queue_frames: int = 4_096
    queue_bytes: int = 256 * 1024 * 1024
    ping_s: float = 1.0
    silence_s: float = 4.0
    stall_s: float = 30.0
    dial_s: float = 3.0
    frame_bytes_max: int = 4 * 1024 * 1024


class Outbox:
    """Messages in order, bounded in number and bytes. `put` never blocks."""

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self._queue: deque[LinkMessage] = deque()
        self._bytes = 0
        self.wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Bytes of rows that wait."""
        return self._bytes

    def put(self, message: LinkMessage) -> bool:
        """False, and nothing queued, where that would pass a bound."""
        size = len(message.payload) if isinstance(message, Activations) else 0
        limits = self._limits
        if len(self._queue) >= limits.queue_frames or self._bytes + size > limits.queue_bytes:
            return False
        self._queue.append(message)
        self._bytes += size
        self.wake.set()
        return True

    def pop(self) -> LinkMessage:
        """The oldest message. Raises IndexError when empty."""
        message = self._queue.popleft()
        if isinstance(message, Activations):
            self._bytes -= len(message.payload)
        return message


class Window:
    """Credits of one stream: frames sent and not yet taken, frames taken and not yet credited."""

    def __init__(self, limits: FlowLimits) -> None:
        self._free = limits.window_frames
        self._max = limits.window_frames
        self._batch = limits.credit_batch_frames
        self._taken = 0

    @property
    def is_open(self) -> bool:
        """Whether one more frame may be sent."""
        return self._free > 0

    @property
    def in_flight(self) -> int:
        return self._max - self._free

    def sent(self) -> None:
        self._free -= 1

    def credited(self, num_frames: int) -> None:
        """The far end has taken frames; more than were sent is its mistake and changes nothing."""
        self._free = min(self._max, self._free + num_frames)

    def took(self) -> bool:
        """Count one received frame; True when a credit is due."""
        self._taken += 1
        return self._taken >= self._batch

    def collect(self) -> int:
        """Frames to give credit for now; 0 where none is due."""
        if self._taken < self._batch:
            return 0
        taken, self._taken = self._taken, 0
        return taken
