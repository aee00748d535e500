"""The two ends of an Exchange call as one kind of thing: bytes in, bytes out.

Frames cross gRPC as bytes and are parsed here, so that one unreadable frame costs itself only,
and sizes are counted exactly.
"""

from collections.abc import Callable
from typing import Final, Protocol

from grpc import aio

from plait.types import NodeId

EXCHANGE_METHOD: Final = "/plait.wire.v1.NodeLinkService/Exchange"
PROBE_METHOD: Final = "/plait.wire.v1.NodeLinkService/ProbeLink"
GATEWAY_METHOD: Final = "/plait.wire.v1.GatewayLinkService/Exchange"

ChannelFactory = Callable[[str, NodeId], aio.Channel]
"""(host:port, expected node) -> a channel that trusts that node's certificate alone."""

PeerIdentity = Callable[[aio.ServicerContext[object, object]], NodeId | None]
"""Who is at the other end of a call, by its certificate."""


class FrameStream(Protocol):
    """One bidirectional call."""

    async def read(self) -> bytes | None:
        """The next frame; None when the far end has finished."""
        ...

    async def write(self, frame: bytes) -> None: ...

    def cancel(self) -> None: ...


class DialledStream:
    """The end that dialled; owns its channel."""

    def __init__(self, channel: aio.Channel, call: "aio.StreamStreamCall[bytes, bytes]") -> None:
        self._channel = channel
        self._call = call

    @classmethod
    def open(cls, channel: aio.Channel, method: str = EXCHANGE_METHOD) -> "DialledStream":
        """Start the call; `connected` says when it stands."""
        exchange: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            method, request_serializer=None, response_deserializer=None
        )
        return cls(channel, exchange())

    async def connected(self) -> None:
        """Raises aio.AioRpcError where the far end cannot be reached or is not who it should be."""
        await self._call.wait_for_connection()

    async def read(self) -> bytes | None:
        frame = await self._call.read()
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> None:
        await self._call.write(frame)

    def cancel(self) -> None:
        self._call.cancel()

    async def close(self) -> None:
        """End the call and its channel."""
        self._call.cancel()
        await self._channel.close()


class AcceptedStream:
    """The end that was dialled."""

    def __init__(self, context: aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        frame = await self._context.read()
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> None:
        await self._context.write(frame)

    def cancel(self) -> None:
        """The call ends when its handler returns."""
