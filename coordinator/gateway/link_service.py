"""GatewayLinkService: nodes dial it on the node port, over mutual TLS."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import grpc
from grpc import aio

from coordinator.gateway.links import NodeLink
from coordinator.gateway.relay import Relay
from plait.errors import FrameError
from plait.log import get
from plait.types import NodeId
from plait.wire.channel import peer_node_id
from plait.wire.v1 import data_pb2, data_pb2_grpc

ATTACH_LIMIT_S: Final = 10.0
log = get("gateway_link")

_Context = aio.ServicerContext[data_pb2.NodeToGateway, data_pb2.GatewayToNode]


class GatewayLinkService(data_pb2_grpc.GatewayLinkServiceServicer):
    """One Exchange per node. Who a node is, its certificate says, never a message."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def Exchange(  # type: ignore[override]  # noqa: N802 - a coroutine, to bound writes
        self, request_iterator: AsyncIterator[data_pb2.NodeToGateway], context: _Context
    ) -> None:
        """Serve one node's stream until either end closes it."""
        node_id = peer_node_id(context)
        if node_id is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no node certificate")
        incarnation = await self._read_attach(request_iterator, context)
        link = self._relay.attach(node_id, incarnation)
        log.info("link_up", node_id=node_id, incarnation=incarnation)
        reader = asyncio.create_task(self._read(node_id, request_iterator), name=f"read {node_id}")
        writer = asyncio.create_task(_write(link, context), name=f"write {node_id}")
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._relay.detach(link)
            for task in (reader, writer):
                task.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
            log.info("link_down", node_id=node_id, reason=link.close_reason)
        for error in results:
            if isinstance(error, FrameError):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)

    async def _read_attach(
        self, messages: AsyncIterator[data_pb2.NodeToGateway], context: _Context
    ) -> int:
        try:
            async with asyncio.timeout(ATTACH_LIMIT_S):
                first = await anext(messages, None)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no attach message came")
            raise
        if first is None or first.WhichOneof("body") != "attach":
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message must be `attach`"
            )
        assert first is not None  # abort raises
        return first.attach.incarnation

    async def _read(self, node_id: NodeId, messages: AsyncIterator[data_pb2.NodeToGateway]) -> None:
        async for message in messages:
            self._relay.receive(node_id, message)
            for other in message.more:
                self._relay.receive(node_id, other)


async def _write(link: NodeLink, context: _Context) -> None:
    while (message := await link.next_message()) is not None:
        await context.write(message)
