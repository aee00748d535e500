"""The node's listening end: mutual TLS whose certificate may be renewed while streams stay open."""

from collections.abc import Callable
from typing import Final

import grpc
from grpc import aio

from node.transport import service
from node.transport.links import LinkTable
from node.transport.weights_service import WeightsGiver, weights_handlers
from plait.crypto.certificates import COORDINATOR_NAME, TlsPair, node_tls_name
from plait.errors import ConfigError
from plait.types import NodeId
from plait.wire.channel import peer_node_id, secure_channel, server_options
from plait.wire.rotation import rotating_credentials

FRAME_BYTES_HARD_MAX: Final = 64 * 1024 * 1024
"""gRPC's own limit on a node; the agreed one, smaller, is held by each stream."""

CurrentTls = Callable[[], TlsPair]
"""The node's key and certificate of this moment."""


def server_credentials(current: CurrentTls, ca_pem: bytes) -> grpc.ServerCredentials:
    """Asks `current` at every handshake; open streams keep what they began with."""
    return rotating_credentials(current, client_ca_pem=ca_pem)


def channel_to_node(
    address: str, node_id: NodeId, *, current: CurrentTls, ca_pem: bytes
) -> aio.Channel:
    """A channel that only the node of that name can answer."""
    tls = current()
    return secure_channel(
        address,
        ca_pem=ca_pem,
        target_name=node_tls_name(node_id),
        certificate_pem=tls.certificate_pem,
        key_pem=tls.key_pem,
        frame_bytes_max=FRAME_BYTES_HARD_MAX,
    )


def channel_to_coordinator(address: str, *, current: CurrentTls, ca_pem: bytes) -> aio.Channel:
    """A channel to the coordinator's node port."""
    tls = current()
    return secure_channel(
        address,
        ca_pem=ca_pem,
        target_name=COORDINATOR_NAME,
        certificate_pem=tls.certificate_pem,
        key_pem=tls.key_pem,
        frame_bytes_max=FRAME_BYTES_HARD_MAX,
    )


async def start_server(
    listen: str,
    links: LinkTable,
    credentials: grpc.ServerCredentials,
    *,
    giver: WeightsGiver | None = None,
) -> tuple[aio.Server, int]:
    """(server, port). `giver` serves weights. Raises ConfigError when the address cannot be
    bound."""
    server = aio.server(
        options=server_options(FRAME_BYTES_HARD_MAX),
        maximum_concurrent_rpcs=service.CONCURRENT_CALLS_MAX,
    )
    server.add_generic_rpc_handlers((service.handlers(links, peer_node_id),))
    if giver is not None:
        server.add_generic_rpc_handlers((weights_handlers(giver, peer_node_id),))
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        await server.stop(0)
        raise ConfigError(
            f"cannot listen on {listen}: the port is taken or the address is not this machine's; "
            "choose another with --listen HOST:PORT",
            reason="port_in_use",
        )
    await server.start()
    return server, port
