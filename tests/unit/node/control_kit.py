"""A coordinator's control service in a few lines, and a node's control client before it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
from grpc import aio

from node.agent.control import ControlClient
from node.agent.meter import NodeMeter
from node.agent.network_time import NetworkTime
from node.agent.profile import SelfProfile
from node.agent.reports import ReportWriter
from node.agent.runtime import NodeRuntime
from node.agent.weights import allows_model
from node.core import NodeCore
from node.core.messages import GatewayMessage
from node.owner.settings import OwnerSettings, read_settings
from node.ports import LinkStats, NodePhase, Progress
from plait.clock import ManualClock, SystemClock
from plait.errors import UnavailableError
from plait.types import LayerSpan, ModelSource, ModelSpec, NodeId, SourceKind
from plait.wire.channel import server_options
from plait.wire.codec import model_source_to_proto, model_spec_to_proto, span_to_proto
from plait.wire.v1 import control_pb2, control_pb2_grpc
from tests.unit.node.fake_engine import FakeEngineHost, tiny_spec
from tests.unit.node.ring import Told, insecure_channel

SOURCE = ModelSource(kind=SourceKind.PATH, name="none")


class CoordinatorKit(control_pb2_grpc.ControlServiceServicer):
    """Remembers reports by kind; `command` speaks to the attached node."""

    def __init__(self, specs: list[ModelSpec], *, heartbeat_ms: int = 100) -> None:
        self.specs = specs
        self.heartbeat_ms = heartbeat_ms
        self.reports: list[control_pb2.NodeReport] = []
        self.num_attached = 0
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.context: aio.ServicerContext[object, object] | None = None
        self.port = 0
        self.unix_ms = 0

    async def start(self, port: int = 0) -> None:
        self.server = aio.server(options=server_options())
        control_pb2_grpc.add_ControlServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop(0)

    async def Attach(  # type: ignore[override]
        self, _: object, context: aio.ServicerContext[object, object]
    ) -> None:
        if self.refusal is not None:
            await context.abort(*self.refusal)
        hello = await context.read()
        assert isinstance(hello, control_pb2.NodeReport)
        self.reports.append(hello)
        welcome = control_pb2.Welcome(
            heartbeat_ms=self.heartbeat_ms,
            models=[
                control_pb2.ModelOffer(
                    spec=model_spec_to_proto(spec), source=model_source_to_proto(SOURCE)
                )
                for spec in self.specs
            ],
            frame_bytes_max=4 << 20,
            unix_ms=self.unix_ms,
        )
        await context.write(control_pb2.NodeCommand(welcome=welcome))
        self.context = context
        self.num_attached += 1
        while isinstance(report := await context.read(), control_pb2.NodeReport):
            self.reports.append(report)

    async def Probe(
        self, request: control_pb2.ProbeRequest, context: object
    ) -> control_pb2.ProbeResponse:
        return control_pb2.ProbeResponse(padding=bytes(request.response_bytes))

    async def Renew(
        self, request: control_pb2.RenewRequest, context: object
    ) -> control_pb2.RenewResponse:
        return control_pb2.RenewResponse()

    async def command(self, command: control_pb2.NodeCommand) -> None:
        assert self.context is not None
        await self.context.write(command)

    async def assign(self, span: LayerSpan, *, epoch: int = 1, model: str = "tiny") -> None:
        assign = control_pb2.AssignSpan(
            allocation_epoch=epoch, model_id=model, span=span_to_proto(span), reason="it is fast"
        )
        await self.command(control_pb2.NodeCommand(assign_span=assign))

    def of(self, kind: str) -> list[control_pb2.NodeReport]:
        """Reports of one kind, oldest first."""
        return [report for report in self.reports if report.WhichOneof("report") == kind]


class NoLinks:
    """No neighbours."""

    def dial(self, neighbour_id: NodeId, addresses: object) -> None: ...

    def send(self, neighbour_id: NodeId, message: object) -> bool:
        return True

    def stats(self) -> tuple[LinkStats, ...]:
        return ()


class NoGateway:
    """Forgets what it is told."""

    def send(self, message: GatewayMessage) -> bool:
        return True


class Probe:
    """One neighbour answers."""

    async def probe(self, neighbour_id: NodeId, addresses: object) -> tuple[float, float]:
        if neighbour_id == "near":
            return 1.5, 2e6
        raise UnavailableError("no answer")


class AttachedNode:
    """A control client with its core and a fake engine."""

    def __init__(self, coordinator: CoordinatorKit, settings: OwnerSettings) -> None:
        limits = settings.limits
        node_id = NodeId("n1")
        self.engine = FakeEngineHost()
        self.core = NodeCore(node_id, 77)
        self.runtime = NodeRuntime(self.core, self.engine, SystemClock())
        self.told = Told()
        self.said: list[Progress] = []
        self.welcomes: list[control_pb2.Welcome] = []
        self.time = NetworkTime(ManualClock())
        now_s = asyncio.get_running_loop().time
        self.control = ControlClient(
            node_id=node_id,
            display_name="one",
            version="0.1.0",
            addresses=(":7000",),
            coordinator=f"127.0.0.1:{coordinator.port}",
            open_channel=lambda: insecure_channel(f"127.0.0.1:{coordinator.port}", node_id),
            core=self.core,
            inbox=self.runtime,
            meter=NodeMeter(self.core, self.engine, NoLinks()),
            profile=SelfProfile(
                self.engine, now_s, up_bytes_per_s=limits.bytes_per_s(limits.up_mbit)
            ),
            allows=partial(allows_model, limits),
            probe=Probe(),
            writer=ReportWriter(77),
            on_welcome=self.welcomes.append,
            progress=self.said.append,
            rng=random.Random(1),
            now_s=now_s,
            time=self.time,
        )
        self.runtime.connect(
            links=NoLinks(), gateway=NoGateway(), reporter=self.control, leaver=self.told
        )
        self.engine.start(self.runtime.results)

    def phases(self) -> list[NodePhase]:
        return [progress.phase for progress in self.said]


@asynccontextmanager
async def attached(
    specs: list[ModelSpec] | None = None, *sets: str
) -> AsyncIterator[tuple[CoordinatorKit, AttachedNode]]:
    """A coordinator and one node that dials it; `sets` are its owner's limits."""
    coordinator = CoordinatorKit([tiny_spec()] if specs is None else specs)
    await coordinator.start()
    node = AttachedNode(coordinator, read_settings(Path("none"), environ={}, flags=sets))
    tasks = [
        asyncio.create_task(node.runtime.run()),
        asyncio.create_task(node.control.run()),
    ]
    try:
        yield coordinator, node
    finally:
        node.runtime.close()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await coordinator.stop()
