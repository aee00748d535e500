"""The node's own server: neighbours' streams and probes."""

from typing import Final, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from node.transport.links import LinkTable
from node.transport.streams import AcceptedStream, PeerIdentity
from plait.types import NodeId
from plait.wire.v1 import data_pb2

PROBE_BYTES_MAX: Final = 4 * 1024 * 1024
CONCURRENT_CALLS_MAX: Final = 1_024


def handlers(links: LinkTable, identity: PeerIdentity) -> grpc.GenericRpcHandler:
    """NodeLinkService over raw bytes."""

    async def known(context: aio.ServicerContext[bytes, bytes]) -> NodeId:
        neighbour_id = identity(cast("aio.ServicerContext[object, object]", context))
        if neighbour_id is None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "the certificate names no node of this network"
            )
        return neighbour_id

    async def exchange(_: object, context: aio.ServicerContext[bytes, bytes]) -> None:
        neighbour_id = await known(context)
        end = await links.serve(neighbour_id, AcceptedStream(context))
        await context.abort(end.code, end.reason)

    async def probe(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        await known(context)
        try:
            message = data_pb2.ProbeLinkRequest.FromString(request)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a probe")
            raise AssertionError("unreachable: abort raises") from None
        if message.response_bytes > PROBE_BYTES_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"a probe asks for at most {PROBE_BYTES_MAX} bytes back",
            )
        padding = bytes(message.response_bytes)
        return data_pb2.ProbeLinkResponse(padding=padding).SerializeToString()

    return grpc.method_handlers_generic_handler(
        "plait.wire.v1.NodeLinkService",
        {
            "Exchange": grpc.stream_stream_rpc_method_handler(exchange),
            "ProbeLink": grpc.unary_unary_rpc_method_handler(probe),
        },
    )
