"""Round trip and bandwidth to a neighbour, over a channel of its own."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from grpc import aio

from node.transport.pace import Pace
from node.transport.streams import PROBE_METHOD, ChannelFactory
from plait.errors import DeadlineError, UnavailableError
from plait.types import NodeId
from plait.wire.v1 import data_pb2

NUM_ROUND_TRIPS: Final = 5
BULK_BYTES: Final = 256 * 1024
"""Sent first: it also widens TCP's window."""
MORE_BYTES: Final = 1024 * 1024
MORE_LIMIT_S: Final = 0.5
"""A link that took longer for the first is slow enough to be known by it."""
LIMIT_S: Final = 5.0


class LinkProbe:
    """Measures; concurrent measurements would disturb each other, so they take turns.

    What it sends counts for the node's pace, and no way is faster than that.
    """

    def __init__(
        self, channels: ChannelFactory, now_s: Callable[[], float], pace: Pace | None = None
    ) -> None:
        self._channels = channels
        self._now_s = now_s
        self._pace = pace if pace is not None else Pace(now_s=now_s)
        self._turn = asyncio.Lock()

    async def probe(self, neighbour_id: NodeId, addresses: Sequence[str]) -> tuple[float, float]:
        """(smallest round trip in ms, bytes/s towards the neighbour), at the first address that
        answers. Raises UnavailableError or DeadlineError."""
        reason = f"no address of {neighbour_id} is known"
        async with self._turn:
            for address in addresses:
                channel = self._channels(address, neighbour_id)
                try:
                    async with asyncio.timeout(LIMIT_S):
                        return await self._measure(channel)
                except aio.AioRpcError as error:
                    reason = f"{address}: {error.details()}"
                except TimeoutError:
                    raise DeadlineError(f"{address} did not answer in {LIMIT_S:g} s") from None
                finally:
                    await channel.close()
        raise UnavailableError(reason)

    async def _measure(self, channel: aio.Channel) -> tuple[float, float]:
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            PROBE_METHOD, request_serializer=None, response_deserializer=None
        )
        small = data_pb2.ProbeLinkRequest(padding=b"\0").SerializeToString()
        bulk = data_pb2.ProbeLinkRequest(padding=bytes(BULK_BYTES)).SerializeToString()
        await call(small)
        rtts_s = [await self._timed(call, small) for _ in range(NUM_ROUND_TRIPS)]
        rtt_s = min(rtts_s)
        bulk_s = await self._timed(call, bulk)
        self._pace.sent(len(bulk), is_bulk=True)
        bytes_per_s = len(bulk) / max(bulk_s - rtt_s, 1e-6)
        limit = self._pace.up_bytes_per_s
        if limit is not None:
            bytes_per_s = min(bytes_per_s, limit)
        elif bulk_s < MORE_LIMIT_S:
            more = data_pb2.ProbeLinkRequest(padding=bytes(MORE_BYTES)).SerializeToString()
            more_s = await self._timed(call, more)
            self._pace.sent(len(more), is_bulk=True)
            bytes_per_s = max(bytes_per_s, len(more) / max(more_s - rtt_s, 1e-6))
        return rtt_s * 1e3, bytes_per_s

    async def _timed(
        self, call: "aio.UnaryUnaryMultiCallable[bytes, bytes]", request: bytes
    ) -> float:
        start_s = self._now_s()
        await call(request)
        return self._now_s() - start_s
