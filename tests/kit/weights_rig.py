"""Nodes that fetch weights, with no engine and no plan: a coordinator's weights service and each
node's asking and giving ends, over real gRPC with mutual TLS, each with a disk of its own."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from grpc import aio

from coordinator.core.weight_book import WeightLimits
from coordinator.shell.weight_copies import WeightCopies
from coordinator.shell.weights import WeightsService
from node.agent.identity import CertificateRequest
from node.agent.weight_counts import WeightCounts
from node.agent.weights_desk import WeightsDesk
from node.agent.weights_means import SupplyLimits, SupplyMeans
from node.agent.weights_supply import WeightsSupply
from node.transport import server as node_server
from node.transport.pace import Pace
from node.transport.weights_client import ChunkClient
from node.transport.weights_service import WeightsGiver, weights_handlers
from plait.clock import SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import COORDINATOR_NAME, TlsPair
from plait.crypto.identity import NodeIdentity
from plait.models.gate import Gate
from plait.models.opening import open_source, pin, prefetch
from plait.models.shelf import Shelf
from plait.models.tensors import span_tensor_names
from plait.types import LayerSpan, ModelSource, NodeId
from plait.types.weights import FileRange
from plait.wire.channel import peer_node_id, server_options
from plait.wire.rotation import rotating_credentials
from plait.wire.v1 import weights_pb2_grpc
from tests.unit.models.tiny import TinyModel, values_of

CLOCK = SystemClock()
LOOPBACK = "127.0.0.1"


class Disk(Shelf):
    """A shelf whose owner may spoil what it gives, or stop to give."""

    def __init__(self, models_dir: Path) -> None:
        super().__init__(models_dir)
        self.is_spoilt = False
        self.asked: Callable[[], None] = lambda: None

    def read(self, content_id: str, wanted: FileRange, chunk: int) -> bytes | None:
        self.asked()
        content = super().read(content_id, wanted, chunk)
        if content is None or not self.is_spoilt:
            return content
        return bytes([content[0] ^ 1]) + content[1:]


@dataclass(slots=True)
class RigNode:
    """One node. `received` counts what came through its gate."""

    node_id: NodeId
    tls: TlsPair
    models_dir: Path
    disk: Disk
    counts: WeightCounts
    supply: WeightsSupply
    server: aio.Server
    giver: WeightsGiver
    gate: Gate
    address: str = ""

    async def load(self, source: ModelSource, model: TinyModel, span: LayerSpan) -> None:
        """Fetch and read a span's tensors, and hold them against the model."""
        await asyncio.to_thread(self._load, source, model, span)

    def _load(self, source: ModelSource, model: TinyModel, span: LayerSpan) -> None:
        opened = open_source(source, models_dir=self.models_dir, supply=self.supply)
        try:
            names = span_tensor_names(opened.spec, span)
            prefetch(opened, names, lambda done, total: None)
            for name in names:
                assert (values_of(opened, name) == model.tensors[name]).all()
        finally:
            opened.close()


@dataclass(slots=True)
class WeightsRig:
    """A coordinator and its nodes. Nodes in `attached` are there for others."""

    home: Path
    source: ModelSource
    authority: CertificateAuthority
    service: WeightsService
    copies: WeightCopies
    coordinator_address: str
    attached: dict[NodeId, tuple[str, ...]]
    stack: AsyncExitStack
    nodes: list[RigNode] = field(default_factory=list)

    @property
    def content_ids(self) -> tuple[str, ...]:
        """Of the model's files."""
        return tuple(self.copies.files)

    async def add(
        self,
        *,
        is_offline: bool = False,
        serves: bool = True,
        limits: SupplyLimits | None = None,
        make_desk: Callable[[Callable[[], aio.Channel]], WeightsDesk] = WeightsDesk,
    ) -> RigNode:
        """A node with an empty disk."""
        node_id = NodeIdentity.generate().node_id
        request = CertificateRequest.make(node_id)
        tls = TlsPair(
            certificate_pem=self.authority.issue_node(request.csr_der, node_id),
            key_pem=request.key_pem,
        )
        ca_pem = self.authority.certificate_pem
        models_dir = self.home / f"node {len(self.nodes) + 1}"
        disk, counts, gate = Disk(models_dir), WeightCounts(), Gate()
        desk = make_desk(
            lambda: node_server.channel_to_coordinator(
                self.coordinator_address, current=lambda: tls, ca_pem=ca_pem
            )
        )
        client = ChunkClient(
            lambda address, other: node_server.channel_to_node(
                address, other, current=lambda: tls, ca_pem=ca_pem
            )
        )
        supply = WeightsSupply(
            SupplyMeans(
                desk=desk,
                neighbours=client,
                shelf=disk,
                counts=counts,
                gate=gate,
                clock=CLOCK,
                is_offline=is_offline,
                serves=serves,
                limits=limits if limits is not None else SupplyLimits(),
            )
        )
        gate.supply = supply
        pace = Pace(now_s=asyncio.get_running_loop().time)
        giver = WeightsGiver(disk, counts, pace, serves=serves)
        server = aio.server(options=server_options(2**26))
        server.add_generic_rpc_handlers((weights_handlers(giver, peer_node_id),))
        credentials = node_server.server_credentials(lambda: tls, ca_pem)
        port = server.add_secure_port(f"{LOOPBACK}:0", credentials)
        await server.start()
        self.stack.push_async_callback(desk.close)
        self.stack.push_async_callback(client.close)
        self.stack.push_async_callback(server.stop, 0)
        node = RigNode(node_id, tls, models_dir, disk, counts, supply, server, giver, gate)
        node.address = f"{LOOPBACK}:{port}"
        self.nodes.append(node)
        self.attached[node_id] = (node.address,)
        return node


@asynccontextmanager
async def weights_rig(
    home: Path, source: ModelSource, *, limits: WeightLimits | None = None
) -> AsyncIterator[WeightsRig]:
    """A coordinator that has pinned `source`, and no nodes yet. A source with a digest is pinned
    already, and on the coordinator's disk."""
    copies_dir = home / "coordinator"
    pinned = source
    if source.digest is None:
        pinned = await asyncio.to_thread(pin, source, models_dir=copies_dir)
    authority = CertificateAuthority.create(CLOCK)
    tls = authority.issue_server((COORDINATOR_NAME, LOOPBACK))
    attached: dict[NodeId, tuple[str, ...]] = {}
    copies = WeightCopies([pinned], copies_dir)
    service = WeightsService(
        copies,
        attached=lambda: dict(attached),
        round_trips=lambda _: {},
        clock=CLOCK,
        rng=random.Random(5),
        limits=limits,
    )
    server = aio.server(options=server_options())
    weights_pb2_grpc.add_WeightsServiceServicer_to_server(service, server)
    credentials = rotating_credentials(lambda: tls, client_ca_pem=authority.certificate_pem)
    port = server.add_secure_port(f"{LOOPBACK}:0", credentials)
    await server.start()
    running = asyncio.create_task(service.run())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0)
        stack.callback(running.cancel)
        yield WeightsRig(
            home, pinned, authority, service, copies, f"{LOOPBACK}:{port}", attached, stack
        )
