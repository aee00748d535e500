"""Several nodes in one process, over real gRPC on loopback, with a gateway that tests drive.

Certificates are left out: a node says who it is in the call's metadata. What mutual TLS adds is
tested where whole processes run.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import grpc
from grpc import aio

from node.agent.runtime import NodeRuntime
from node.core import NodeCore
from node.core.effects import Exit, ReportEffect
from node.core.events import ControlAttached, ModelOffered, SpanAssigned
from node.core.speculation import Proposers
from node.core.state import Limits
from node.ports import TicketCheck
from node.transport import service
from node.transport.decode import FrameReader
from node.transport.flow import FlowLimits
from node.transport.gateway import GatewayLink
from node.transport.links import LinkTable
from node.transport.probe import LinkProbe
from plait.clock import SystemClock
from plait.crypto.identity import new_ed25519
from plait.crypto.tickets import TicketSigner, TicketVerifier
from plait.types import (
    DType,
    FinishReason,
    LayerSpan,
    ModelSource,
    ModelSpec,
    NodeId,
    RequestId,
    RouteTicket,
    SamplingParams,
    SourceKind,
    TicketStage,
)
from plait.wire.channel import channel_options, server_options
from plait.wire.codec import finish_reason_from_proto, finish_reason_to_proto
from plait.wire.sampling import sampling_to_proto
from plait.wire.tickets import decode_payload, signed_ticket
from plait.wire.v1 import data_pb2
from tests.unit.node.fake_engine import FakeEngineHost, tiny_spec

NETWORK = "0123456789abcdef"
SOURCE = ModelSource(kind=SourceKind.PATH, name="none")
ID_KEY = "test-node-id"


async def until(condition: Callable[[], bool], *, limit_s: float = 5.0, what: str = "") -> None:
    """Wait for a condition; fails after the limit."""
    try:
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110 - conditions of many kinds
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s} s: {what or condition}") from None


def insecure_channel(address: str, own_id: NodeId) -> aio.Channel:
    """A channel whose user agent names the caller: the tests' stand-in for a certificate."""
    options = [*channel_options(), ("grpc.primary_user_agent", f"id/{own_id}")]
    return aio.insecure_channel(address, options=options)


def insecure_identity(context: aio.ServicerContext[object, object]) -> NodeId | None:
    """The name in the caller's user agent."""
    for key, value in context.invocation_metadata() or ():
        if key == "user-agent" and str(value).startswith("id/"):
            return NodeId(str(value).split()[0].removeprefix("id/"))
    return None


class GatewayKit:
    """A gateway in a few lines: what nodes said, by request; and a way to talk to each."""

    def __init__(self) -> None:
        self.messages: dict[str, list[data_pb2.NodeToGateway]] = {}
        self.calls: dict[NodeId, aio.ServicerContext[bytes, bytes]] = {}
        self.port = 0
        self.num_attached = 0
        self.num_cancels = 0

    async def start(self, port: int = 0) -> None:
        handler = grpc.method_handlers_generic_handler(
            "plait.wire.v1.GatewayLinkService",
            {"Exchange": grpc.stream_stream_rpc_method_handler(self._exchange)},
        )
        self._server = aio.server(options=server_options())
        self._server.add_generic_rpc_handlers((handler,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _exchange(self, _: object, context: aio.ServicerContext[bytes, bytes]) -> None:
        node_id = insecure_identity(context)  # type: ignore[arg-type]
        assert node_id is not None
        first = data_pb2.NodeToGateway.FromString(await context.read())
        assert first.WhichOneof("body") == "attach"
        self.calls[node_id] = context
        self.num_attached += 1
        if self.num_cancels > 0:
            self.num_cancels -= 1
            await context.abort(grpc.StatusCode.CANCELLED, "not now")
        while isinstance(data := await context.read(), bytes):
            first = data_pb2.NodeToGateway.FromString(data)
            for message in (first, *first.more):
                body = getattr(message, message.WhichOneof("body") or "")
                if hasattr(body, "request_id"):  # what is kept for a gateway names its ticket
                    self.messages.setdefault(body.request_id, []).append(message)

    async def send(self, node_id: NodeId, message: data_pb2.GatewayToNode) -> None:
        await self.calls[node_id].write(message.SerializeToString())

    def tokens(self, request_id: str) -> list[int]:
        return [
            m.token.token_id
            for m in self.messages.get(request_id, [])
            if m.WhichOneof("body") == "token"
        ]

    def finish(self, request_id: str) -> FinishReason | None:
        for m in self.messages.get(request_id, []):
            if m.WhichOneof("body") == "token" and m.token.finish_reason:
                return finish_reason_from_proto(m.token.finish_reason)
        return None

    def broken(self, request_id: str) -> list[data_pb2.Broken]:
        return [
            m.broken for m in self.messages.get(request_id, []) if m.WhichOneof("body") == "broken"
        ]

    def is_opened(self, request_id: str) -> bool:
        return any(m.WhichOneof("body") == "opened" for m in self.messages.get(request_id, []))


class Told:
    """A reporter and leaver that remembers."""

    def __init__(self) -> None:
        self.reports: list[ReportEffect] = []
        self.progress: list[tuple[int, str, int, int]] = []
        self.exit: Exit | None = None

    def report(self, effect: ReportEffect) -> None:
        self.reports.append(effect)

    def report_progress(self, allocation_epoch: int, phase: str, done: int, total: int) -> None:
        self.progress.append((allocation_epoch, phase, done, total))

    def leave(self, effect: Exit) -> None:
        self.exit = effect


@dataclass(slots=True)
class NodeKit:
    """One node."""

    node_id: NodeId
    span: LayerSpan
    engine: FakeEngineHost
    runtime: NodeRuntime
    links: LinkTable
    gateway: GatewayLink
    server: aio.Server
    address: str
    told: Told
    probe: LinkProbe
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def kill(self) -> None:
        """As if the process had died: every stream ends at once."""
        self.runtime.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.stop(0)


class Ring:
    """Nodes, a gateway, and the coordinator's ticket key."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.nodes: list[NodeKit] = []
        self.gateway = GatewayKit()
        self.signer = TicketSigner(new_ed25519())
        self._ids = itertools.count(1)

    async def add(
        self,
        name: str,
        span: LayerSpan,
        *,
        flow: FlowLimits | None = None,
        limits: Limits | None = None,
        proposers: Proposers | None = None,
        tickets: TicketCheck | None = None,
        kv_tokens_max: int = 4_096,
    ) -> NodeKit:
        node_id = NodeId(name)
        clock = SystemClock()
        engine = FakeEngineHost(kv_tokens_max=kv_tokens_max)
        core = NodeCore(node_id, 1, limits, proposers=proposers)
        runtime = NodeRuntime(core, engine, clock)
        reader = FrameReader(
            tickets=tickets
            or TicketVerifier(
                public_key=self.signer.public_bytes,
                network_id=NETWORK,
                node_id=node_id,
                clock=clock,
                decode=decode_payload,
            ),
            clock=clock,
            incarnation=1,
            held_model=lambda: core.held.model_id if core.held else None,
        )
        links = LinkTable(
            channels=lambda address, _: insecure_channel(address, node_id),
            reader=reader,
            inbox=runtime,
            limits=flow or FlowLimits(),
            now_s=asyncio.get_running_loop().time,
        )
        gateway = GatewayLink(
            open_channel=lambda: insecure_channel(f"127.0.0.1:{self.gateway.port}", node_id),
            reader=reader,
            inbox=runtime,
            incarnation=1,
            rng=random.Random(name),
        )
        server = aio.server(options=server_options(16 << 20))
        server.add_generic_rpc_handlers((service.handlers(links, insecure_identity),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        told = Told()
        runtime.connect(links=links, gateway=gateway, reporter=told, leaver=told)
        engine.start(runtime.results)
        kit = NodeKit(
            node_id,
            span,
            engine,
            runtime,
            links,
            gateway,
            server,
            f"127.0.0.1:{port}",
            told,
            LinkProbe(
                lambda address, _: insecure_channel(address, node_id),
                asyncio.get_running_loop().time,
            ),
        )
        kit.tasks = [asyncio.create_task(part.run()) for part in (runtime, links, gateway)]
        self.nodes.append(kit)
        runtime.post(
            ControlAttached(models=(ModelOffered(self.spec, SOURCE),), frame_bytes_max=4 << 20)
        )
        runtime.post(
            SpanAssigned(
                allocation_epoch=1,
                model_id=self.spec.model_id,
                span=span,
                kv_tokens_min=1,
                reason="test",
            )
        )
        await until(lambda: core.state == "serving" and gateway.is_up, what=f"{name} serves")
        await until(lambda: node_id in self.gateway.calls)
        return kit

    def ticket(
        self,
        request_id: str,
        *,
        epoch: int = 1,
        kv_tokens: int = 256,
        nodes: Sequence[NodeKit] | None = None,
        valid_ms: int = 600_000,
        signer: TicketSigner | None = None,
        cache_salt: bytes = b"",
        wire_dtype: DType = DType.FLOAT32,
    ) -> data_pb2.Ticket:
        now_ms = SystemClock().unix_ms()
        ticket = RouteTicket(
            ticket_id=f"t{next(self._ids)}",
            network_id=NETWORK,
            request_id=RequestId(request_id),
            epoch=epoch,
            model_id=self.spec.model_id,
            stages=tuple(
                TicketStage(
                    node_id=kit.node_id, incarnation=1, span=kit.span, addresses=(kit.address,)
                )
                for kit in (self.nodes if nodes is None else nodes)
            ),
            kv_tokens=kv_tokens,
            issued_unix_ms=min(now_ms, now_ms + valid_ms - 1),
            expires_unix_ms=now_ms + valid_ms,
            wire_dtype=wire_dtype,
            cache_salt=cache_salt,
        )
        return signed_ticket(ticket, (signer or self.signer).sign)

    async def start(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        max_new_tokens: int = 8,
        stop_token_ids: Sequence[int] = (),
        ticket: data_pb2.Ticket | None = None,
        at: NodeKit | None = None,
    ) -> None:
        """Send a request to its first stage."""
        start = data_pb2.StartRequest(
            open=data_pb2.Open(
                ticket=ticket or self.ticket(request_id),
                stage_index=0,
                sampling=sampling_to_proto(SamplingParams(temperature=0.0)),
                stop_token_ids=stop_token_ids,
                max_new_tokens=max_new_tokens,
                prompt_tokens=len(prompt),
            ),
            prompt_token_ids=prompt,
        )
        node_id = (at or self.nodes[0]).node_id
        await self.gateway.send(node_id, data_pb2.GatewayToNode(start=start))

    async def close(
        self, request_id: str, *, epoch: int = 1, reason: FinishReason = FinishReason.CANCELLED
    ) -> None:
        """What a gateway does when the client has gone."""
        close = data_pb2.Close(
            request_id=request_id, epoch=epoch, reason=finish_reason_to_proto(reason)
        )
        await self.gateway.send(self.nodes[0].node_id, data_pb2.GatewayToNode(close=close))

    def is_free(self) -> bool:
        """Whether no node holds KV or a session."""
        return all(k.engine.reserved == 0 and k.runtime.core.num_sessions == 0 for k in self.nodes)


@contextlib.asynccontextmanager
async def ring(
    num_nodes: int = 3,
    *,
    num_layers: int = 6,
    flow: FlowLimits | None = None,
    limits: Limits | None = None,
    proposers: Proposers | None = None,
    kv_tokens_max: int = 4_096,
) -> AsyncIterator[Ring]:
    """`num_nodes` nodes that hold a model of `num_layers` layers between them."""
    made = Ring(tiny_spec(num_layers))
    await made.gateway.start()
    cuts = [num_layers * i // num_nodes for i in range(num_nodes + 1)]
    try:
        for index in range(num_nodes):
            await made.add(
                f"n{index}",
                LayerSpan(cuts[index], cuts[index + 1]),
                flow=flow,
                limits=limits,
                proposers=proposers,
                kv_tokens_max=kv_tokens_max,
            )
        yield made
    finally:
        for kit in made.nodes:
            await kit.kill()
        await made.gateway.stop()
