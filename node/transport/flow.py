"""What waits to be sent on one way to a neighbour, and how much of it may be under way."""

import asyncio
from collections import deque
from dataclasses import dataclass

from node.core.messages import Activations, LinkMessage
from plait.types import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Bounds of one direction of a stream. Seconds where the name says so."""

    window_frames: int = 64
    credit_batch_frames: int = 16
    bulk_window_bytes: int = 1024 * 1024
    queue_frames: int = 4_096
    queue_bytes: int = 256 * 1024 * 1024
    ping_s: float = 1.0
    silence_s: float = 4.0
    stall_s: float = 30.0
    dial_s: float = 3.0
    frame_bytes_max: int = 4 * 1024 * 1024


class Outbox:
    """Messages bounded in number and bytes. `put` never blocks.

    Two lanes: prefill chunks wait behind everything else, so that a long prompt of one request
    does not stall the tokens of the others. Rows of one request keep their order.
    """

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self._quick: deque[LinkMessage] = deque()
        self._bulk: deque[Activations] = deque()
        self._bulk_requests: dict[RequestId, int] = {}
        self._bytes = 0
        self.wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._quick) + len(self._bulk)

    @property
    def num_quick(self) -> int:
        """Messages that do not wait behind prompts."""
        return len(self._quick)

    @property
    def num_bulk(self) -> int:
        """Prompts' rows, and what keeps its order behind them."""
        return len(self._bulk)

    @property
    def queued_bytes(self) -> int:
        """Bytes of rows that wait."""
        return self._bytes

    def put(self, message: LinkMessage) -> bool:
        """False, and nothing queued, where that would pass a bound."""
        limits = self._limits
        if len(self) >= limits.queue_frames:
            return False
        if isinstance(message, Activations):
            size = len(message.payload)
            if self._bytes + size > limits.queue_bytes:
                return False
            self._bytes += size
            waiting = self._bulk_requests.get(message.request_id, 0)
            if message.is_prompt or waiting:
                self._bulk_requests[message.request_id] = waiting + 1
                self._bulk.append(message)
                self.wake.set()
                return True
        self._quick.append(message)
        self.wake.set()
        return True

    def pop(self, window: "Window") -> LinkMessage | None:
        """The next message that the window lets through; None where there is none."""
        if self._quick:
            if not window.is_open:
                return None
            message = self._quick.popleft()
            if isinstance(message, Activations):
                self._bytes -= len(message.payload)
            window.sent()
            return message
        if not self._bulk or not window.is_open_for_bulk(len(self._bulk[0].payload)):
            return None
        rows = self._bulk.popleft()
        self._forget_bulk(rows.request_id)
        self._bytes -= len(rows.payload)
        window.sent(bulk_bytes=len(rows.payload) if rows.is_prompt else 0)
        return rows

    def _forget_bulk(self, request_id: RequestId) -> None:
        left = self._bulk_requests[request_id] - 1
        if left:
            self._bulk_requests[request_id] = left
        else:
            del self._bulk_requests[request_id]


class Window:
    """Credits of one stream: frames sent and not yet taken, frames taken and not yet credited.

    Prefill chunks may use half of the frames and `bulk_window_bytes` at once: what is under way
    cannot be overtaken any more. They are credited at once, other frames in batches.
    """

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._taken = 0
        self._is_due = False

    @property
    def is_open(self) -> bool:
        """Whether one more frame may be sent."""
        return len(self._sizes) < self._limits.window_frames

    def is_open_for_bulk(self, num_bytes: int) -> bool:
        """Whether a prefill chunk of this size may be sent."""
        limits = self._limits
        if len(self._sizes) > limits.window_frames // 2:
            return False
        return self._bytes == 0 or self._bytes + num_bytes <= limits.bulk_window_bytes

    @property
    def in_flight(self) -> int:
        return len(self._sizes)

    def sent(self, *, bulk_bytes: int = 0) -> None:
        """Count a frame under way; `bulk_bytes` are a prefill chunk's."""
        self._sizes.append(bulk_bytes)
        self._bytes += bulk_bytes

    def credited(self, num_frames: int) -> None:
        """The far end has taken frames; more than were sent is its mistake and changes nothing."""
        for _ in range(min(num_frames, len(self._sizes))):
            self._bytes -= self._sizes.popleft()

    def took(self, *, is_bulk: bool = False) -> bool:
        """Count one received frame; True when a credit is due."""
        self._taken += 1
        if is_bulk or self._taken >= self._limits.credit_batch_frames:
            self._is_due = True
        return self._is_due

    @property
    def is_due(self) -> bool:
        """Whether a credit is to be given."""
        return self._is_due and self._taken > 0

    def collect(self) -> int:
        """Frames to give credit for now; 0 where none is due."""
        if not self._is_due:
            return 0
        taken, self._taken, self._is_due = self._taken, 0, False
        return taken
