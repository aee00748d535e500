"""The asking end of weights, against a neighbour that ends while two chunks are on their way."""

import asyncio

import grpc
import pytest
from grpc import aio

from node.transport.weights_client import FETCH_METHOD, ChunkClient
from plait.errors import UnavailableError
from plait.types import NodeId
from plait.types.weights import FileRange
from plait.wire.v1 import weights_pb2

HOLDER = NodeId("n" * 16)
WANTED = FileRange(0, 1_000)


class Neighbour:
    """Answers no fetch but the first, with "it leaves", once as many have asked as should."""

    def __init__(self, num_asking: int) -> None:
        self._num_asking = num_asking
        self._asked = 0
        self._all = asyncio.Event()

    async def fetch(self, _: bytes, context: aio.ServicerContext[bytes, bytes]) -> None:
        self._asked += 1
        is_first = self._asked == 1
        await context.write(weights_pb2.FetchResponse(content=b"a").SerializeToString())
        if self._asked == self._num_asking:
            self._all.set()
        await self._all.wait()
        if is_first:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it leaves")
        await asyncio.Event().wait()

    async def serve(self) -> tuple[aio.Server, str]:
        service, _, method = FETCH_METHOD.removeprefix("/").partition("/")
        server = aio.server()
        handler = grpc.method_handlers_generic_handler(
            service, {method: grpc.unary_stream_rpc_method_handler(self.fetch)}
        )
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, f"127.0.0.1:{port}"


async def test_all_that_was_asked_of_a_neighbour_that_leaves_ends_with_an_error() -> None:
    """gRPC cancels what else is under way on a channel that is closed: for whoever waits for it
    that is a neighbour that cannot be had, and not its own end."""
    server, address = await Neighbour(num_asking=3).serve()
    client = ChunkClient(lambda where, _: aio.insecure_channel(where))
    try:
        async with asyncio.timeout(30):
            ends = await asyncio.gather(
                *(client.fetch(HOLDER, [address], "sha256", WANTED, 0) for _ in range(3)),
                return_exceptions=True,
            )
        assert [type(end) for end in ends] == [UnavailableError] * 3
    finally:
        await client.close()
        await server.stop(0)


async def test_who_waits_no_longer_is_cancelled() -> None:
    neighbour = Neighbour(num_asking=2)
    server, address = await neighbour.serve()
    client = ChunkClient(lambda where, _: aio.insecure_channel(where))
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.fetch(HOLDER, [address], "sha256", WANTED, 0)
    finally:
        await client.close()
        await server.stop(0)


async def test_a_neighbour_that_is_gone_is_known_at_once_and_its_other_address_is_tried() -> None:
    gone, nowhere = await Neighbour(num_asking=9).serve()
    await gone.stop(0)
    server, address = await Neighbour(num_asking=1).serve()
    client = ChunkClient(lambda where, _: aio.insecure_channel(where), connect_s=600.0)
    try:
        async with asyncio.timeout(60):
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await client.fetch(HOLDER, [nowhere], "sha256", WANTED, 0)
            with pytest.raises(UnavailableError, match="it leaves"):
                await client.fetch(HOLDER, [nowhere, address], "sha256", WANTED, 0)
    finally:
        await client.close()
        await server.stop(0)
