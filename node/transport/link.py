"""One stream with a neighbour: a reader, a writer and a watch, whichever end dialled."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from node.ports import Inbox
from node.transport import encode
from node.transport.decode import FrameReader, rejected
from node.transport.flow import FlowLimits, Outbox, Window
from node.transport.pace import Pace
from node.transport.streams import FrameStream
from plait.types import NodeId
from plait.wire.v1 import data_pb2

_RTT_WEIGHT: Final = 0.2
_CONTROL: Final = frozenset({"credit", "ping", "pong"})


class LinkEnded(Exception):  # noqa: N818 - how a link's tasks leave their group
    """The stream is over; says why, and with which status an accepted call should end."""

    def __init__(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class LinkCounters:
    """Totals of all streams with one neighbour."""

    __slots__ = (
        "received_bytes",
        "received_frames",
        "rtt_ms",
        "sent_bytes",
        "sent_frames",
        "sequence_errors",
    )

    def __init__(self) -> None:
        self.sent_frames = 0
        self.sent_bytes = 0
        self.received_frames = 0
        self.received_bytes = 0
        self.sequence_errors = 0
        self.rtt_ms: float | None = None


class NeighbourLink:
    """Runs one stream until it ends. Only this task's loop touches it."""

    def __init__(
        self,
        neighbour_id: NodeId,
        stream: FrameStream,
        outbox: Outbox,
        *,
        reader: FrameReader,
        inbox: Inbox,
        limits: FlowLimits,
        counters: LinkCounters,
        now_s: Callable[[], float],
        pace: Pace | None = None,
    ) -> None:
        self.neighbour_id = neighbour_id
        self._stream = stream
        self._outbox = outbox
        self._reader = reader
        self._inbox = inbox
        self._limits = limits
        self._counters = counters
        self._now_s = now_s
        self._pace = pace if pace is not None else Pace(now_s=now_s)
        self._window = Window(limits)
        self._sequence_out = 0
        self._sequence_in = 0
        self._control: list[tuple[bool, int]] = []
        self._pings: dict[int, float] = {}
        self._ping_nonce = 0
        self._heard_s = now_s()
        self._progress_s = now_s()

    async def run(self) -> LinkEnded:
        """Serve the stream; returns why it ended. Cancelling ends it too."""
        end = LinkEnded("the call had ended")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read())
                group.create_task(self._write())
                group.create_task(self._watch())
        except* LinkEnded as ended:
            first = ended.exceptions[0]
            end = first if isinstance(first, LinkEnded) else end
        except* aio.AioRpcError as failed:
            end = LinkEnded(describe_rpc_error(failed.exceptions[0]))
        except* (aio.UsageError, aio.InternalError, asyncio.InvalidStateError):
            pass
        finally:
            self._pace.leave(self)
            self._stream.cancel()
        return end

    async def _read(self) -> None:
        counters = self._counters
        while (data := await self._stream.read()) is not None:
            self._heard_s = self._now_s()
            counters.received_frames += 1
            counters.received_bytes += len(data)
            self._pace.received(len(data))
            if len(data) > self._limits.frame_bytes_max:
                self._refuse_oversize(len(data))
            try:
                frame = data_pb2.LinkFrame.FromString(data)
            except DecodeError:
                self._refuse_malformed("not a frame")
                continue
            if len(frame.more) >= encode.TOGETHER_MAX:
                self._refuse_malformed(f"{1 + len(frame.more)} frames came together")
                continue
            self._take(frame)
            for other in frame.more:
                counters.received_frames += 1
                self._take(other)
        raise LinkEnded("the neighbour closed the stream")

    def _take(self, frame: data_pb2.LinkFrame) -> None:
        if frame.sequence <= self._sequence_in:
            self._counters.sequence_errors += 1
            return
        self._sequence_in = frame.sequence
        if frame.WhichOneof("body") in _CONTROL:
            self._take_control(frame)
            return
        rows = frame.activations
        self._count_taken(is_bulk=rows.num_tokens > 1 + len(rows.drafted_ids))
        self._inbox.post(self._reader.link_event(self.neighbour_id, frame))

    def _refuse_malformed(self, message: str) -> None:
        self._count_taken(is_bulk=False)
        self._inbox.post(rejected(self.neighbour_id, "frame_malformed", message))

    def _refuse_oversize(self, num_bytes: int) -> NoReturn:
        message = f"a frame of {num_bytes} bytes, at most {self._limits.frame_bytes_max} allowed"
        self._inbox.post(rejected(self.neighbour_id, "frame_oversize", message))
        raise LinkEnded(message, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def _count_taken(self, *, is_bulk: bool) -> None:
        if self._window.took(is_bulk=is_bulk):
            self._outbox.wake.set()

    def _take_control(self, frame: data_pb2.LinkFrame) -> None:
        kind = frame.WhichOneof("body")
        if kind == "credit":
            self._window.credited(frame.credit.frames)
            self._progress_s = self._now_s()
            self._outbox.wake.set()
        elif kind == "ping":
            if len(self._control) < self._limits.window_frames:
                self._control.append((False, frame.ping.nonce))
                self._outbox.wake.set()
        else:
            sent_s = self._pings.pop(frame.pong.nonce, None)
            if sent_s is not None:
                self._note_rtt((self._now_s() - sent_s) * 1e3)

    def _note_rtt(self, rtt_ms: float) -> None:
        known = self._counters.rtt_ms
        if known is None:
            self._counters.rtt_ms = rtt_ms
        else:
            self._counters.rtt_ms = known + _RTT_WEIGHT * (rtt_ms - known)

    async def _write(self) -> None:
        outbox, wake = self._outbox, self._outbox.wake
        while True:
            num_bulk = outbox.num_bulk
            frames = encode.first_few(self._ready_frames())
            if not frames:
                wake.clear()
                await self._wait()
                continue
            data = encode.together(frames)
            self._pace.sent(len(data), is_bulk=outbox.num_bulk < num_bulk)
            await self._stream.write(data)
            self._counters.sent_frames += len(frames)
            self._counters.sent_bytes += len(data)
            if not outbox:
                self._progress_s = self._now_s()

    async def _wait(self) -> None:
        """For something to send, or for the pace to let it go."""
        wait_s = self._send_wait_s()
        if self._window.is_due:
            credit_s = self._pace.credit_wait_s()
            wait_s = min(wait_s, credit_s) if wait_s > 0.0 else credit_s
        if wait_s <= 0.0:
            await self._outbox.wake.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._outbox.wake.wait()

    def _send_wait_s(self) -> float:
        """Until the pace lets the next message go; 0 where it does now, or there is none."""
        if self._outbox.num_quick:
            return self._pace.quick_wait_s()
        return self._pace.bulk_wait_s(self) if self._outbox.num_bulk else 0.0

    def _ready_frames(self) -> Iterator[bytes]:
        """Those that may leave together: writing one costs as much as writing a few. A prompt's
        rows leave alone."""
        num_bulk = self._outbox.num_bulk
        while (frame := self._next_frame()) is not None:
            yield frame
            is_bulk = self._outbox.num_bulk < num_bulk
            if is_bulk or not (self._control or self._outbox.num_quick):
                return

    def _next_frame(self) -> bytes | None:
        """Flow control first, then messages as far as the window and the pace allow."""
        if self._control:
            is_ping, nonce = self._control.pop(0)
            sequence = self._next_sequence()
            if is_ping:
                self._pings[nonce] = self._now_s()
                return encode.ping_frame(sequence, nonce)
            return encode.pong_frame(sequence, nonce)
        if self._window.is_due and self._pace.credit_wait_s() <= 0.0:
            return encode.credit_frame(self._next_sequence(), self._window.collect())
        if self._send_wait_s() > 0.0:
            self._progress_s = self._now_s()  # it is this end that waits
            return None
        message = self._outbox.pop(self._window)
        self._pace.leave(self)
        if message is None:
            return None
        return encode.link_frame(self._next_sequence(), message)

    def _next_sequence(self) -> int:
        self._sequence_out += 1
        return self._sequence_out

    async def _watch(self) -> None:
        """Pings; gives up on a neighbour that is silent, or that takes nothing for too long."""
        limits = self._limits
        while True:
            self._ping_nonce += 1
            self._control.append((True, self._ping_nonce))
            self._pings = dict(list(self._pings.items())[-8:])
            self._outbox.wake.set()
            await asyncio.sleep(limits.ping_s)
            now_s = self._now_s()
            if now_s - self._heard_s > limits.silence_s:
                raise LinkEnded(f"nothing heard for {limits.silence_s:g} s")
            if self._outbox and now_s - self._progress_s > limits.stall_s:
                raise LinkEnded(f"nothing taken for {limits.stall_s:g} s")


def describe_rpc_error(error: BaseException) -> str:
    """A failed call in a few words."""
    if not isinstance(error, aio.AioRpcError):
        return type(error).__name__
    return f"{error.code().name.lower()}: {error.details()}"
