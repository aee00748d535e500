"""A neighbour that tests drive frame by frame, by hand."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Self

from grpc import aio

from node.transport.streams import EXCHANGE_METHOD
from plait.types import LayerSpan, NodeId, SamplingParams
from plait.wire.sampling import sampling_to_proto
from plait.wire.v1 import data_pb2
from tests.unit.node.ring import NodeKit, insecure_channel


def frames_of(data: bytes) -> list[data_pb2.LinkFrame]:
    """All that came together."""
    first = data_pb2.LinkFrame.FromString(data)
    return [first, *first.more]


class Rogue:
    """Dials a node and says what it likes."""

    def __init__(self, name: str, address: str) -> None:
        self.node_id = NodeId(name)
        self.address = "127.0.0.1:1"
        self.span = LayerSpan(0, 1)
        self._target = address
        self._sequence = 0

    async def __aenter__(self) -> Self:
        self._channel = insecure_channel(self._target, self.node_id)
        call: aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            EXCHANGE_METHOD, request_serializer=None, response_deserializer=None
        )
        self._call = call()
        with contextlib.suppress(aio.AioRpcError):  # refused at once: `end` says how
            await self._call.wait_for_connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        await self._channel.close()

    def as_stage(self, node: NodeKit, *, until_layer: int, is_first: bool = True) -> list[NodeKit]:
        """A chain of this rogue and an honest node that holds all layers."""
        whole = node.span
        mine, theirs = LayerSpan(0, until_layer), LayerSpan(until_layer, whole.end)
        if is_first:
            self.span = mine
            return [self, replace(node, span=theirs)]  # type: ignore[list-item]
        self.span = theirs
        return [replace(node, span=mine), self]  # type: ignore[list-item]

    async def write(self, frame: bytes) -> None:
        """Send raw bytes."""
        await self._call.write(frame)

    def _frame(self) -> data_pb2.LinkFrame:
        self._sequence += 1
        return data_pb2.LinkFrame(sequence=self._sequence)

    def ping(self) -> bytes:
        """One ping."""
        frame = self._frame()
        frame.ping.nonce = 1
        return frame.SerializeToString()

    async def open(
        self, ticket: data_pb2.Ticket, *, stage_index: int, prompt_tokens: int = 1
    ) -> None:
        """Ask for a stage."""
        frame = self._frame()
        frame.open.ticket.CopyFrom(ticket)
        frame.open.stage_index = stage_index
        frame.open.max_new_tokens = 4
        frame.open.prompt_tokens = prompt_tokens
        frame.open.sampling.CopyFrom(sampling_to_proto(SamplingParams(temperature=0.0)))
        await self.write(frame.SerializeToString())

    async def rows(self, request: str, *, position: int, payload: bytes, epoch: int = 1) -> None:
        """One row."""
        frame = self._frame()
        frame.activations.request_id = request
        frame.activations.epoch = epoch
        frame.activations.position = position
        frame.activations.payload = payload
        await self.write(frame.SerializeToString())

    async def pong(self) -> None:
        """Wait for the answer to a ping: the stream stands."""
        async with asyncio.timeout(5):
            while isinstance(data := await self._call.read(), bytes):
                if any(frame.WhichOneof("body") == "pong" for frame in frames_of(data)):
                    return
        raise AssertionError("the stream ended")

    async def broken(self) -> data_pb2.Broken:
        """The next Broken that comes."""
        async with asyncio.timeout(5):
            while isinstance(data := await self._call.read(), bytes):
                for frame in frames_of(data):
                    if frame.WhichOneof("body") == "broken":
                        return frame.broken
        raise AssertionError("the stream ended")

    async def end(self) -> tuple[str, str]:
        """(status, details) with which the node ended the stream."""
        async with asyncio.timeout(5):
            with contextlib.suppress(aio.AioRpcError):
                while isinstance(await self._call.read(), bytes):
                    pass
            code = await self._call.code()
            return code.name, await self._call.details() or ""
