"""A gateway on loopback with a scripted network behind it, and clients for it."""

import contextlib
import hashlib
import itertools
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import httpx
from grpc import aio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from coordinator.gateway.gateway import Gateway, GatewayConfig
from coordinator.gateway.generate import GenerateLimits
from coordinator.gateway.limits import DoorLimits
from coordinator.shell.servers import bind, http_server
from plait.clock import SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import COORDINATOR_NAME, key_to_pem, make_csr, new_tls_key
from plait.sdk import AsyncClient, Client
from plait.types import NodeId
from plait.wire.channel import (
    mtls_server_credentials,
    secure_channel,
    server_options,
    tls_server_credentials,
)
from tests.kit.scripted_network import (
    API_KEY,
    ByteTokenizer,
    FakeViews,
    ScriptedNetwork,
    one_key,
    tiny_spec,
)
from tests.kit.stores import MemoryKeys

BEARER: Final = {"authorization": f"Bearer {API_KEY}"}
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: each would read all of the world's authorities else."""


@dataclass
class GatewayRig:
    """Everything a test may touch. `url` is the HTTP door's root where it is served."""

    gateway: Gateway
    network: ScriptedNetwork
    views: FakeViews
    keys: MemoryKeys
    url: str = ""
    address: str = ""
    node_address: str = ""
    authority: CertificateAuthority | None = None

    def client(self, *, key: str = API_KEY, timeout_s: float = 10.0) -> Client:
        return Client(self.address, key, self.ca_pem, timeout_s=timeout_s)

    def async_client(self, *, key: str = API_KEY, timeout_s: float = 10.0) -> AsyncClient:
        return AsyncClient(self.address, key, self.ca_pem, timeout_s=timeout_s)

    @property
    def ca_pem(self) -> bytes:
        assert self.authority is not None
        return self.authority.certificate_pem

    def node_channel(self, node_id: NodeId) -> aio.Channel:
        """A channel to the node port with a certificate that names `node_id`."""
        assert self.authority is not None
        key = new_tls_key()
        return secure_channel(
            self.node_address,
            ca_pem=self.ca_pem,
            target_name=COORDINATOR_NAME,
            certificate_pem=self.authority.issue_node(make_csr(key, node_id), node_id),
            key_pem=key_to_pem(key),
        )

    def openai(self, *, key: str = API_KEY) -> AsyncOpenAI:
        url, client = f"{self.url}/v1", DefaultAsyncHttpxClient(verify=NO_TLS)
        return AsyncOpenAI(
            base_url=url, api_key=key, max_retries=0, timeout=10.0, http_client=client
        )

    def http(
        self, headers: Mapping[str, str] = BEARER, *, timeout_s: float = 10.0
    ) -> httpx.AsyncClient:
        """A client of the HTTP door."""
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout_s, verify=NO_TLS
        )


def make_gateway(
    network: ScriptedNetwork,
    *,
    door: DoorLimits | None = None,
    generate: GenerateLimits | None = None,
    context_tokens_max: int = 4096,
) -> GatewayRig:
    """A gateway without doors; call inside a running loop."""
    spec = tiny_spec(context_tokens_max=context_tokens_max)
    views = FakeViews(spec)
    counter, keys = itertools.count(1), one_key()
    gateway = Gateway(
        config=GatewayConfig(
            network_id="net",
            door=door if door is not None else DoorLimits(),
            generate=generate if generate is not None else GenerateLimits(),
        ),
        models=[spec],
        tokenizers={spec.model_id: ByteTokenizer()},
        inbox=network,
        views=views,
        keys=keys,
        sign=lambda payload: hashlib.sha256(b"signed" + payload).digest(),
        clock=SystemClock(),
        new_id=lambda: f"id{next(counter)}",
    )
    network.relay = gateway.relay
    return GatewayRig(gateway, network, views, keys)


@contextlib.asynccontextmanager
async def open_gateway(
    network: ScriptedNetwork,
    *,
    door: DoorLimits | None = None,
    generate: GenerateLimits | None = None,
    context_tokens_max: int = 4096,
) -> AsyncIterator[GatewayRig]:
    """A gateway whose HTTP door is served by a real uvicorn on loopback."""
    rig = make_gateway(network, door=door, generate=generate, context_tokens_max=context_tokens_max)
    network.attach()
    bound = bind("127.0.0.1", 0, flag="--http")
    rig.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        async with http_server(rig.gateway.http_app(), bound, protocol=rig.gateway.http_protocol()):
            yield rig
    finally:
        await network.stop()
        await rig.gateway.close()


@contextlib.asynccontextmanager
async def open_doors(
    network: ScriptedNetwork,
    *,
    door: DoorLimits | None = None,
    generate: GenerateLimits | None = None,
    with_nodes: bool = True,
) -> AsyncIterator[GatewayRig]:
    """A gateway whose gRPC doors are served over TLS on loopback."""
    rig = make_gateway(network, door=door, generate=generate)
    rig.authority = CertificateAuthority.create(SystemClock())
    pair = rig.authority.issue_server([COORDINATOR_NAME])
    if with_nodes:
        network.attach()
    public, node = aio.server(options=server_options()), aio.server(options=server_options())
    rig.gateway.add_to_public_port(public)
    rig.gateway.add_to_node_port(node)
    tls = tls_server_credentials(key_pem=pair.key_pem, certificate_pem=pair.certificate_pem)
    mtls = mtls_server_credentials(
        key_pem=pair.key_pem, certificate_pem=pair.certificate_pem, ca_pem=rig.ca_pem
    )
    rig.address = f"127.0.0.1:{public.add_secure_port('127.0.0.1:0', tls)}"
    rig.node_address = f"127.0.0.1:{node.add_secure_port('127.0.0.1:0', mtls)}"
    await public.start()
    await node.start()
    try:
        yield rig
    finally:
        await network.stop()
        await public.stop(0.5)
        await node.stop(0.5)
        await rig.gateway.close()
