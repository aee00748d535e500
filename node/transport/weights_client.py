"""Asks neighbours for chunks of weights, over a channel to each that stays while it is used."""

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc
from grpc import aio

from node.transport.streams import ChannelFactory
from plait.errors import FrameError, OverloadedError, UnavailableError
from plait.types import NodeId
from plait.types.weights import FileRange
from plait.wire.v1 import weights_pb2

FETCH_METHOD: Final = "/plait.wire.v1.NodeWeightsService/Fetch"
BLOCK_S: Final = 30.0
"""What a neighbour may take for its next block, however busy it is."""
CONNECT_S: Final = 3.0
_SETTLED: Final = frozenset(
    {
        grpc.ChannelConnectivity.READY,
        grpc.ChannelConnectivity.TRANSIENT_FAILURE,
        grpc.ChannelConnectivity.SHUTDOWN,
    }
)


class ChunkClient:
    """One node's asking end. `close` it at the end."""

    def __init__(self, channels: ChannelFactory, *, connect_s: float = CONNECT_S) -> None:
        self._channels = channels
        self._connect_s = connect_s
        self._open: dict[NodeId, aio.Channel] = {}
        self._opening: dict[NodeId, asyncio.Lock] = {}

    async def fetch(
        self,
        holder: NodeId,
        addresses: Sequence[str],
        content_id: str,
        wanted: FileRange,
        chunk: int,
    ) -> bytes:
        """A chunk's bytes, not yet compared. Raises OverloadedError (come again), FrameError (more
        than was asked for), UnavailableError (anything else)."""
        channel = await self._channel(holder, addresses)
        request = weights_pb2.FetchRequest(
            content_id=content_id,
            range=weights_pb2.FileRange(start=wanted.start, size=wanted.size),
            chunk=chunk,
        )
        size, content = wanted.chunk(chunk).size, bytearray()
        fetch: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            FETCH_METHOD, request_serializer=None, response_deserializer=None
        )
        call = fetch(request.SerializeToString())
        try:
            while True:
                async with asyncio.timeout(BLOCK_S):
                    block = await call.read()
                if not isinstance(block, bytes):
                    return bytes(content)
                content += weights_pb2.FetchResponse.FromString(block).content
                if len(content) > size:
                    raise FrameError(f"{holder} sent more than a chunk", reason="weights_oversize")
        except TimeoutError:
            raise UnavailableError(f"{holder} sent nothing for {BLOCK_S:g} s") from None
        except (asyncio.CancelledError, aio.UsageError):
            if _is_ending():
                raise
            raise UnavailableError(f"{holder} has left") from None
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise OverloadedError(f"{holder} gives to others now") from error
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self._drop(holder)
            raise UnavailableError(f"{holder}: {error.details()}") from error
        finally:
            call.cancel()

    async def close(self) -> None:
        for holder in list(self._open):
            await self._drop(holder)

    async def _channel(self, holder: NodeId, addresses: Sequence[str]) -> aio.Channel:
        """To the first address that answers as the holder. Raises UnavailableError."""
        async with self._opening.setdefault(holder, asyncio.Lock()):
            if holder in self._open:
                return self._open[holder]
            for address in addresses:
                channel = self._channels(address, holder)
                if await _answers(channel, self._connect_s):
                    self._open[holder] = channel
                    return channel
                await channel.close()
        raise UnavailableError(f"{holder} cannot be reached at {', '.join(addresses) or 'all'}")

    async def _drop(self, holder: NodeId) -> None:
        """Other calls of that channel end as cancelled."""
        channel = self._open.pop(holder, None)
        if channel is not None:
            await channel.close()


async def _answers(channel: aio.Channel, limit_s: float) -> bool:
    """Whether somebody does within the limit. Where nobody listens, or another than the holder
    does, that is known at once."""
    try:
        async with asyncio.timeout(limit_s):
            while (state := channel.get_state(try_to_connect=True)) not in _SETTLED:
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return state is grpc.ChannelConnectivity.READY


def _is_ending() -> bool:
    """Whether it is the task that runs that was cancelled, and not its call alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
