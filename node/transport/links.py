"""All streams with neighbours. Who dials and who sends are two things: a stream that a neighbour
opened carries our frames too."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import grpc
from grpc import aio

from node.core import events as ev
from node.core.messages import LinkMessage
from node.ports import Inbox, LinkStats
from node.transport.decode import FrameReader
from node.transport.flow import FlowLimits, Outbox
from node.transport.link import LinkCounters, LinkEnded, NeighbourLink
from node.transport.pace import Pace
from node.transport.streams import ChannelFactory, DialledStream, FrameStream
from plait import log
from plait.types import NodeId

NEIGHBOURS_MAX: Final = 512
SPARE_STREAMS_MAX: Final = 3

_log = log.get("links")


class Way:
    """How frames reach one neighbour: through the first of its streams, or not yet."""

    __slots__ = ("dialling", "outbox", "spare", "stream_id")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.dialling: asyncio.Task[None] | None = None
        self.stream_id: int | None = None
        self.spare: dict[int, Outbox] = {}


class LinkTable:
    """The node's streams. `run` owns the tasks of those it dials; handlers own the others."""

    def __init__(
        self,
        *,
        channels: ChannelFactory,
        reader: FrameReader,
        inbox: Inbox,
        limits: FlowLimits,
        now_s: Callable[[], float],
        pace: Pace | None = None,
    ) -> None:
        self._channels = channels
        self._reader = reader
        self._inbox = inbox
        self._limits = limits
        self._now_s = now_s
        self._pace = pace if pace is not None else Pace(now_s=now_s)
        self._ways: dict[NodeId, Way] = {}
        self._counters: dict[NodeId, LinkCounters] = {}
        self._num_streams = 0
        self._dialled: set[NodeId] = set()
        self._group: asyncio.TaskGroup | None = None

    def set_frame_bytes_max(self, frame_bytes_max: int) -> None:
        """Largest frame taken from now on, on streams yet to be opened."""
        self._limits = replace(self._limits, frame_bytes_max=frame_bytes_max)

    async def run(self) -> None:
        """Serve the streams that this node dials, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await asyncio.Event().wait()
        finally:
            self._group = None

    def dial(self, neighbour_id: NodeId, addresses: Sequence[str]) -> None:
        """Have a stream with a neighbour; nothing to do where one stands or is being made."""
        way = self._ways.get(neighbour_id)
        if way is not None and (way.stream_id is not None or way.dialling is not None):
            return
        if self._group is None or (way is None and len(self._ways) >= NEIGHBOURS_MAX):
            self._inbox.post(ev.LinkDown(neighbour_id, "this node takes no more neighbours"))
            return
        if way is None:
            way = self._ways[neighbour_id] = Way(Outbox(self._limits))
        self._dialled.add(neighbour_id)
        way.dialling = self._group.create_task(
            self._dial_and_serve(neighbour_id, tuple(addresses), way)
        )

    def send(self, neighbour_id: NodeId, message: LinkMessage) -> bool:
        """Queue a message; False where there is no way or its queue is full."""
        way = self._ways.get(neighbour_id)
        return way is not None and way.outbox.put(message)

    def is_busy(self) -> bool:
        """Whether frames wait to be sent to a neighbour."""
        return any(way.outbox for way in self._ways.values())

    def stats(self) -> tuple[LinkStats, ...]:
        return tuple(
            LinkStats(
                neighbour_id=neighbour_id,
                sent_frames=counters.sent_frames,
                sent_bytes=counters.sent_bytes,
                received_frames=counters.received_frames,
                received_bytes=counters.received_bytes,
                sequence_errors=counters.sequence_errors,
                rtt_ms=counters.rtt_ms,
                is_up=neighbour_id in self._ways and self._ways[neighbour_id].stream_id is not None,
            )
            for neighbour_id, counters in self._counters.items()
        )

    def dialled(self) -> tuple[NodeId, ...]:
        """Neighbours whose stream this node opened or is opening, for tests and operators."""
        return tuple(self._dialled)

    def num_streams(self, neighbour_id: NodeId) -> int:
        """Streams that stand with a neighbour, spare ones included."""
        way = self._ways.get(neighbour_id)
        return 0 if way is None else len(way.spare) + (way.stream_id is not None)

    def sent_to(self, neighbour_id: NodeId) -> tuple[int, int]:
        """(frames, bytes) sent to a neighbour since the start."""
        counters = self._counters.get(neighbour_id)
        return (counters.sent_frames, counters.sent_bytes) if counters is not None else (0, 0)

    async def serve(self, neighbour_id: NodeId, stream: FrameStream) -> LinkEnded:
        """Run an accepted or dialled stream to its end; returns why it ended."""
        way = self._ways.get(neighbour_id)
        if way is None:
            if len(self._ways) >= NEIGHBOURS_MAX:
                return LinkEnded(
                    "this node takes no more neighbours", grpc.StatusCode.RESOURCE_EXHAUSTED
                )
            way = self._ways[neighbour_id] = Way(Outbox(self._limits))
        if len(way.spare) >= SPARE_STREAMS_MAX:
            return LinkEnded("too many streams", grpc.StatusCode.RESOURCE_EXHAUSTED)
        self._num_streams += 1
        stream_id = self._num_streams
        outbox = self._adopt(way, stream_id)
        if way.stream_id == stream_id:
            _log.info("link_up", neighbour=neighbour_id)
            self._inbox.post(ev.LinkUp(neighbour_id))
        link = NeighbourLink(
            neighbour_id,
            stream,
            outbox,
            reader=self._reader,
            inbox=self._inbox,
            limits=self._limits,
            counters=self._counters.setdefault(neighbour_id, LinkCounters()),
            now_s=self._now_s,
            pace=self._pace,
        )
        end = LinkEnded("the stream was cancelled")
        try:
            end = await link.run()
        finally:
            self._drop(neighbour_id, way, stream_id, end.reason)
        return end

    def _adopt(self, way: Way, stream_id: int) -> Outbox:
        """The first stream takes the way's queue; a second one only listens until it is needed."""
        if way.stream_id is None:
            way.stream_id = stream_id
            return way.outbox
        way.spare[stream_id] = Outbox(self._limits)
        return way.spare[stream_id]

    def _drop(self, neighbour_id: NodeId, way: Way, stream_id: int, reason: str) -> None:
        if way.stream_id != stream_id:
            del way.spare[stream_id]
            return
        if way.spare:
            way.stream_id, way.outbox = way.spare.popitem()
        else:
            del self._ways[neighbour_id]
        _log.info("link_down", neighbour=neighbour_id, reason=reason)
        self._inbox.post(ev.LinkDown(neighbour_id, reason))

    async def _dial_and_serve(
        self, neighbour_id: NodeId, addresses: tuple[str, ...], way: Way
    ) -> None:
        reason = "no address is known"
        for address in addresses:
            stream = DialledStream.open(self._channels(address, neighbour_id))
            try:
                async with asyncio.timeout(self._limits.dial_s):
                    await stream.connected()
            except TimeoutError:
                reason = f"{address} did not answer within {self._limits.dial_s:g} s"
            except aio.AioRpcError as error:
                reason = f"{address}: {error.details()}"
            else:
                way.dialling = None
                await self.serve(neighbour_id, stream)
                return
            finally:
                with contextlib.suppress(aio.UsageError):
                    await stream.close()
            if way.stream_id is not None:
                break
        way.dialling = None
        if way.stream_id is None:
            if self._ways.get(neighbour_id) is way:
                del self._ways[neighbour_id]
            _log.warning("dial_failed", neighbour=neighbour_id, reason=reason)
            self._inbox.post(ev.LinkDown(neighbour_id, reason))
