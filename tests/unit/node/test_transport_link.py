"""One stream, and the table of all: what a neighbour may make a node hold, when it is given up."""

import asyncio
from dataclasses import dataclass, field

import grpc
import pytest

from node.core import events as ev
from node.core.messages import Activations, Close
from node.transport import encode
from node.transport.flow import FlowLimits, Outbox
from node.transport.link import LinkCounters, NeighbourLink
from node.transport.links import NEIGHBOURS_MAX, LinkTable
from node.transport.pace import Pace
from plait.types import DType, FinishReason, NodeId
from plait.wire.v1 import data_pb2
from tests.kit.wait import until
from tests.unit.node.ring import insecure_channel
from tests.unit.node.rogue import frames_of
from tests.unit.node.story import A, rid
from tests.unit.node.test_transport_frames import reader


def prompt_rows(position: int, *, num_bytes: int) -> Activations:
    """Two rows of a prompt."""
    payload = bytes(num_bytes)
    return Activations(rid(), 1, position, 2, payload, sample=False, dtype=DType.FLOAT32)


CLOSE = Close(request_id=rid(), epoch=1, reason=FinishReason.STOP)


@dataclass
class MemoryStream:
    """The far end is the test: it fills `incoming`, and looks at `written`. Nothing can be written
    while `is_taking` is not set."""

    incoming: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    writes: list[list[data_pb2.LinkFrame]] = field(default_factory=list)
    is_taking: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> bytes | None:
        return await self.incoming.get()

    async def write(self, frame: bytes) -> None:
        await self.is_taking.wait()
        self.writes.append(frames_of(frame))

    def cancel(self) -> None:
        self.is_taking.set()

    @property
    def written(self) -> list[data_pb2.LinkFrame]:
        return [frame for frames in self.writes for frame in frames]

    def rows_together(self) -> list[int]:
        """How many rows each message has, of those with any."""
        rows = [[f for f in frames if f.HasField("activations")] for frames in self.writes]
        return [len(of_write) for of_write in rows if of_write]

    def kinds(self) -> list[str | None]:
        return [frame.WhichOneof("body") for frame in self.written]


class Inbox:
    """Remembers."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def post(self, event: object) -> None:
        self.events.append(event)


class Seconds:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def link(
    stream: MemoryStream,
    outbox: Outbox,
    limits: FlowLimits,
    now_s: Seconds,
    counters: LinkCounters | None = None,
    inbox: Inbox | None = None,
    pace: Pace | None = None,
) -> NeighbourLink:
    return NeighbourLink(
        A,
        stream,
        outbox,
        reader=reader(),
        inbox=inbox or Inbox(),
        limits=limits,
        counters=counters or LinkCounters(),
        now_s=now_s,
        pace=pace,
    )


async def test_a_flood_of_pings_is_answered_a_window_full_at_most() -> None:
    limits, stream = FlowLimits(window_frames=4), MemoryStream()
    task = asyncio.create_task(link(stream, Outbox(limits), limits, Seconds()).run())
    for nonce in range(1, 101):
        stream.incoming.put_nowait(encode.ping_frame(nonce, nonce))
    await until(stream.incoming.empty, what="all pings read")
    stream.is_taking.set()
    await until(lambda: "pong" in stream.kinds(), what="a pong")
    stream.incoming.put_nowait(None)
    await task
    assert 1 <= stream.kinds().count("pong") <= limits.window_frames + 1


async def test_a_neighbour_that_talks_but_takes_nothing_is_given_up() -> None:
    limits = FlowLimits(window_frames=1, ping_s=0.01, silence_s=1e6, stall_s=30.0)
    stream, now_s, outbox = MemoryStream(), Seconds(), Outbox(limits)
    stream.is_taking.set()
    outbox.put(CLOSE)
    outbox.put(CLOSE)
    task = asyncio.create_task(link(stream, outbox, limits, now_s).run())
    await until(lambda: stream.kinds().count("ping") > 2, what="a link that lives")
    assert stream.kinds().count("close") == 1, "the second waits for a credit"
    assert not task.done()
    now_s.now_s = 31.0
    async with asyncio.timeout(5):
        end = await task
    assert end.reason == "nothing taken for 30 s"


def one_row(number: int) -> Activations:
    return Activations(rid(f"r{number}"), 1, 7, 1, bytes(2_000), sample=False)


async def test_rows_of_one_step_leave_together_and_a_prompts_alone() -> None:
    limits, stream = FlowLimits(ping_s=1e6, silence_s=1e6), MemoryStream()
    outbox, counters = Outbox(limits), LinkCounters()
    for number in range(4):
        outbox.put(one_row(number))
    for position in (0, 2):
        outbox.put(prompt_rows(position, num_bytes=4_000))
    stream.is_taking.set()
    first = link(stream, outbox, limits, Seconds(), counters)
    task = asyncio.create_task(first.run())
    await until(lambda: len(stream.written) == 7, what="a ping, four rows and two chunks")
    assert stream.rows_together() == [4, 1, 1]
    assert [frame.sequence for frame in stream.written] == list(range(1, 8))
    assert counters.sent_frames == 7
    for frame in stream.written[1:]:
        stream.incoming.put_nowait(frame.SerializeToString())
    stream.incoming.put_nowait(None)
    await task


async def test_no_more_bytes_leave_together_than_an_upload_sends_soon() -> None:
    limits, stream = FlowLimits(ping_s=1e6, silence_s=1e6), MemoryStream()
    outbox, num_rows = Outbox(limits), 60
    for number in range(num_rows):
        outbox.put(one_row(number))
    stream.is_taking.set()
    task = asyncio.create_task(link(stream, outbox, limits, Seconds()).run())
    await until(lambda: len(stream.written) == 1 + num_rows, what="all rows")
    first, second = stream.rows_together()
    assert encode.TOGETHER_BYTES < 2_050 * first < encode.TOGETHER_BYTES + 4_100
    assert first + second == num_rows
    stream.incoming.put_nowait(None)
    await task


async def test_what_came_together_is_taken_in_order_and_counted() -> None:
    limits, stream, inbox = FlowLimits(ping_s=1e6, silence_s=1e6), MemoryStream(), Inbox()
    counters = LinkCounters()
    frames = [encode.link_frame(1 + number, one_row(number)) for number in range(3)]
    stream.incoming.put_nowait(encode.together(frames))
    stream.incoming.put_nowait(encode.together(frames[:1] * (encode.TOGETHER_MAX + 1)))
    stream.incoming.put_nowait(encode.together([encode.link_frame(3, one_row(3)), frames[0]]))
    stream.incoming.put_nowait(None)
    await link(stream, Outbox(limits), limits, Seconds(), counters, inbox).run()
    *rows, refused = inbox.events
    assert [e.activations.request_id for e in rows if isinstance(e, ev.ActivationsReceived)] == [
        rid(f"r{number}") for number in range(3)
    ]
    assert isinstance(refused, ev.FrameRejected)
    assert (refused.reason.code, "65 frames" in refused.reason.message) == ("frame_malformed", True)
    assert (counters.received_frames, counters.sequence_errors) == (6, 2)


async def test_prompts_wait_for_the_owners_rate_and_tokens_and_pings_do_not() -> None:
    limits = FlowLimits(ping_s=0.01, silence_s=1e6, stall_s=30.0)
    stream, now_s, outbox = MemoryStream(), Seconds(), Outbox(limits)
    stream.is_taking.set()
    pace = Pace(now_s=now_s, up_bytes_per_s=10_000.0)
    for position in range(3):
        outbox.put(prompt_rows(position, num_bytes=40_000))
    task = asyncio.create_task(link(stream, outbox, limits, now_s, pace=pace).run())
    await until(lambda: stream.kinds().count("ping") > 3, what="pings beside a prompt that waits")
    assert stream.kinds().count("activations") == 1
    outbox.put(CLOSE)
    await until(lambda: "close" in stream.kinds(), what="what is no prompt")
    assert stream.kinds().count("activations") == 1
    now_s.now_s = 29.0
    await until(lambda: stream.kinds().count("activations") == 2, what="the next rows")
    now_s.now_s = 58.0
    await until(lambda: stream.kinds().count("activations") == 3, what="the last rows")
    assert not task.done(), "who is slow by its owner's will is not given up by itself"
    stream.incoming.put_nowait(None)
    await task
    assert pace.totals.sent_bytes > 120_000


async def test_credits_wait_for_the_owners_rate_of_receiving() -> None:
    limits = FlowLimits(ping_s=0.01, silence_s=1e6)
    stream, now_s = MemoryStream(), Seconds()
    stream.is_taking.set()
    pace = Pace(now_s=now_s, down_bytes_per_s=1_000.0)
    task = asyncio.create_task(link(stream, Outbox(limits), limits, now_s, pace=pace).run())
    stream.incoming.put_nowait(encode.link_frame(1, prompt_rows(0, num_bytes=5_000)))
    await until(lambda: stream.kinds().count("ping") > 3, what="pings")
    assert "credit" not in stream.kinds()
    now_s.now_s = 10.0
    await until(lambda: "credit" in stream.kinds(), what="a credit")
    stream.incoming.put_nowait(None)
    await task


async def test_a_stream_with_nothing_to_send_may_be_idle_for_long() -> None:
    limits = FlowLimits(ping_s=0.01, silence_s=1e6, stall_s=30.0)
    stream, now_s = MemoryStream(), Seconds()
    stream.is_taking.set()
    task = asyncio.create_task(link(stream, Outbox(limits), limits, now_s).run())
    now_s.now_s = 3_600.0
    await until(lambda: stream.kinds().count("ping") > 2, what="more pings")
    assert not task.done()
    stream.incoming.put_nowait(None)
    assert (await task).reason == "the neighbour closed the stream"


async def test_a_node_has_so_many_neighbours_and_no_more() -> None:
    inbox = Inbox()
    table = LinkTable(
        channels=lambda address, _: insecure_channel(address, A),
        reader=reader(),
        inbox=inbox,
        limits=FlowLimits(ping_s=60.0),
        now_s=Seconds(),
    )
    running = asyncio.create_task(table.run())
    streams = [MemoryStream() for _ in range(NEIGHBOURS_MAX)]
    served = [
        asyncio.create_task(table.serve(NodeId(f"n{number}"), stream))
        for number, stream in enumerate(streams)
    ]
    await until(lambda: len(table.stats()) == NEIGHBOURS_MAX, what="all served")

    async with asyncio.timeout(5):
        refused = await table.serve(NodeId("stranger"), MemoryStream())
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.reason == "this node takes no more neighbours"
    table.dial(NodeId("wanted"), ["127.0.0.1:1"])
    assert inbox.events[-1] == ev.LinkDown(NodeId("wanted"), "this node takes no more neighbours")
    assert table.dialled() == ()

    for stream in streams:
        stream.incoming.put_nowait(None)
    await asyncio.gather(*served)
    assert table.num_streams(NodeId("n0")) == 0, "a place is free again"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
