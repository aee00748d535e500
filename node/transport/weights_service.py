"""Gives chunks of weights to neighbours: by ids, in small pieces, behind everything else."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final, NoReturn, Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from node.transport.pace import Pace
from node.transport.streams import PeerIdentity
from plait import log
from plait.types import NodeId
from plait.types.weights import CHUNK_BYTES, FileRange
from plait.wire.v1 import weights_pb2

REQUEST_BYTES_MAX: Final = 1_024
BLOCK_BYTES: Final = 256 * 1024
GIVEN_AT_ONCE_MAX: Final = 8
GIVEN_TO_ONE_MAX: Final = 4
WRITE_S: Final = 30.0
YIELD_S: Final = 0.005
YIELDS_MAX: Final = 100
"""How often a block lets waiting frames go first; then it goes all the same."""

_log = log.get("weights")


class ChunkShelf(Protocol):
    """Where chunks lie."""

    def read(self, content_id: str, wanted: FileRange, chunk: int) -> bytes | None:
        """None where it is not here. Blocks."""
        ...


class ServedCounts(Protocol):
    """What is told of it."""

    served_bytes: int

    def refuse(self, why: str) -> None: ...


class WeightsGiver:
    """One node's. `serves` False refuses everybody: its owner wants it so."""

    def __init__(
        self,
        shelf: ChunkShelf,
        counts: ServedCounts,
        pace: Pace,
        *,
        serves: bool,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_busy` says whether frames of requests wait to be sent."""
        self._shelf = shelf
        self._counts = counts
        self._pace = pace
        self._serves = serves
        self._is_busy = is_busy
        self._given: dict[NodeId, int] = {}

    async def give(
        self, neighbour_id: NodeId, request: bytes
    ) -> AsyncGenerator[weights_pb2.FetchResponse, None]:
        """A chunk's blocks. Raises Refused, counted."""
        content_id, wanted, chunk = self._checked(request)
        busy = sum(self._given.values()) >= GIVEN_AT_ONCE_MAX
        if busy or self._given.get(neighbour_id, 0) >= GIVEN_TO_ONE_MAX:
            self._refuse("busy", grpc.StatusCode.RESOURCE_EXHAUSTED, "too many at once")
        self._given[neighbour_id] = self._given.get(neighbour_id, 0) + 1
        try:
            content = await asyncio.to_thread(self._shelf.read, content_id, wanted, chunk)
            if content is None:
                self._refuse("unknown", grpc.StatusCode.NOT_FOUND, "it is not here")
            for at in range(0, len(content), BLOCK_BYTES):
                block = content[at : at + BLOCK_BYTES]
                await self._turn()
                self._pace.sent(len(block), is_bulk=True)
                self._counts.served_bytes += len(block)
                yield weights_pb2.FetchResponse(content=block)
        finally:
            self._given[neighbour_id] -= 1
            if self._given[neighbour_id] == 0:
                del self._given[neighbour_id]

    def _checked(self, request: bytes) -> tuple[str, FileRange, int]:
        if not self._serves:
            self._refuse("off", grpc.StatusCode.PERMISSION_DENIED, "this node's owner gives none")
        if len(request) > REQUEST_BYTES_MAX:
            self._refuse("oversize", grpc.StatusCode.INVALID_ARGUMENT, "the request is too long")
        try:
            asked = weights_pb2.FetchRequest.FromString(request)
        except DecodeError:
            self._refuse("malformed", grpc.StatusCode.INVALID_ARGUMENT, "not a request")
        wanted = FileRange(asked.range.start, asked.range.size)
        if asked.chunk * CHUNK_BYTES >= wanted.size:
            self._refuse("range", grpc.StatusCode.INVALID_ARGUMENT, "the range has no such chunk")
        return asked.content_id, wanted, asked.chunk

    async def _turn(self) -> None:
        """Until requests have nothing to send, and the owner's rate allows it."""
        for _ in range(YIELDS_MAX):
            if not self._is_busy():
                break
            await asyncio.sleep(YIELD_S)
        while (wait_s := self._pace.spare_wait_s()) > 0.0:  # noqa: ASYNC110 - the bucket's time
            await asyncio.sleep(min(wait_s, 1.0))

    def _refuse(self, why: str, code: grpc.StatusCode, message: str) -> NoReturn:
        self._counts.refuse(why)
        raise Refused(code, message)


class Refused(Exception):  # noqa: N818 - how a request that gets nothing ends
    """The call's status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def weights_handlers(giver: WeightsGiver, identity: PeerIdentity) -> grpc.GenericRpcHandler:
    """NodeWeightsService over raw bytes: what is no request is counted, not answered by gRPC."""

    async def fetch(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> None:
        neighbour_id = identity(cast("aio.ServicerContext[object, object]", context))
        if neighbour_id is None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "the certificate names no node of this network"
            )
        try:
            async with contextlib.aclosing(giver.give(neighbour_id, request)) as blocks:
                async for block in blocks:
                    async with asyncio.timeout(WRITE_S):
                        await context.write(block.SerializeToString())
        except Refused as refused:
            _log.info("weights_refused", neighbour=neighbour_id, reason=refused.message)
            await context.abort(refused.code, refused.message)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the block was not taken")

    return grpc.method_handlers_generic_handler(
        "plait.wire.v1.NodeWeightsService",
        {"Fetch": grpc.unary_stream_rpc_method_handler(fetch)},
    )
