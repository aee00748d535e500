"""Control streams over real mutual TLS: reports in, commands out, and who may speak for a node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from grpc import aio

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.shell.control import ControlService, Offer, frame_bytes_max
from coordinator.shell.inbox import EventInbox
from coordinator.shell.servers import GrpcDoor
from plait.clock import SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import COORDINATOR_NAME, key_to_pem, make_csr, new_tls_key
from plait.errors import AuthenticationError, ConfigError
from plait.types import LayerSpan, ModelSource, NodeId, Reason, SourceKind
from plait.wire import codec
from plait.wire.channel import mtls_server_credentials, secure_channel
from plait.wire.listening import check_bindable
from plait.wire.v1 import control_pb2, control_pb2_grpc
from plait.wire.version import PROTOCOL_VERSION
from tests.kit.inbox import ListInbox
from tests.kit.wait import until
from tests.unit.shell.fakes import LOAD, SPEC

SOURCE = ModelSource(kind=SourceKind.CATALOGUE, name="tiny")
OFFER = Offer(
    models=((SPEC, SOURCE),),
    telemetry_url="mqtt://:1883",
    telemetry_credentials=lambda node_id: (node_id, f"secret of {node_id}"),
)
NODE = NodeId("n" + "a" * 16)
Call = aio.StreamStreamCall[control_pb2.NodeReport, control_pb2.NodeCommand]


async def renew(node_id: NodeId, csr_der: bytes, signature: bytes) -> bytes:
    if signature != b"good":
        raise AuthenticationError("a wrong signature", reason="bad_signature")
    return b"chain of " + node_id.encode() + csr_der


@dataclass
class Network:
    service: ControlService
    inbox: ListInbox
    ca: CertificateAuthority
    address: str

    def channel(self, node_id: NodeId = NODE) -> aio.Channel:
        key = new_tls_key()
        return secure_channel(
            self.address,
            ca_pem=self.ca.certificate_pem,
            target_name=COORDINATOR_NAME,
            certificate_pem=self.ca.issue_node(make_csr(key, node_id), node_id),
            key_pem=key_to_pem(key),
        )


@asynccontextmanager
async def network(*, hello_s: float = 5.0) -> AsyncIterator[Network]:
    ca = CertificateAuthority.create(SystemClock())
    pair = ca.issue_server(["127.0.0.1"])
    inbox = ListInbox()
    service = ControlService(inbox, OFFER, renew, hello_s=hello_s)

    def add(server: aio.Server) -> None:
        control_pb2_grpc.add_ControlServiceServicer_to_server(service, server)

    door = GrpcDoor(
        host="127.0.0.1",
        port=0,
        flag="--node-listen",
        credentials=mtls_server_credentials(
            key_pem=pair.key_pem, certificate_pem=pair.certificate_pem, ca_pem=ca.certificate_pem
        ),
        calls_max=64,
    )
    async with door.serve(add):
        yield Network(service, inbox, ca, f"127.0.0.1:{door.port}")


def hello(incarnation: int = 1, *, version: int = PROTOCOL_VERSION) -> control_pb2.NodeReport:
    return control_pb2.NodeReport(
        incarnation=incarnation,
        hello=control_pb2.Hello(
            protocol_version=version, display_name="one\x1b[31m", addresses=[":7", "1.2.3.4:8"]
        ),
    )


def heartbeat(incarnation: int = 1) -> control_pb2.NodeReport:
    return control_pb2.NodeReport(incarnation=incarnation, heartbeat=codec.load_to_proto(LOAD))


async def read(call: Call) -> control_pb2.NodeCommand:
    command = await call.read()
    assert isinstance(command, control_pb2.NodeCommand), "the stream ended"
    return command


async def attach(channel: aio.Channel, incarnation: int = 1) -> Call:
    call = control_pb2_grpc.ControlServiceStub(channel).Attach()
    await call.write(hello(incarnation))
    command = await read(call)
    assert command.WhichOneof("command") == "welcome"
    return call


async def test_a_node_is_welcomed_and_its_reports_become_events() -> None:
    async with network() as net, net.channel() as channel:
        call = control_pb2_grpc.ControlServiceStub(channel).Attach()
        await call.write(hello())
        welcome = (await read(call)).welcome
        assert welcome.heartbeat_ms == 1_000
        assert abs(welcome.unix_ms - SystemClock().unix_ms()) < 60_000
        assert codec.model_spec_from_proto(welcome.models[0].spec) == SPEC
        assert codec.model_source_from_proto(welcome.models[0].source) == SOURCE
        assert welcome.telemetry_username == NODE
        assert welcome.telemetry_password == f"secret of {NODE}"
        assert welcome.frame_bytes_max == frame_bytes_max([SPEC])
        await call.write(heartbeat())
        await call.write(
            control_pb2.NodeReport(
                incarnation=1,
                neighbour_measured=control_pb2.NeighbourMeasured(
                    node_id="nb", rtt_ms=2, bytes_per_s=3, reachable=True
                ),
            )
        )
        await call.done_writing()
        await until(lambda: len(net.inbox.events) == 4)
    attached, reported, measured, detached = net.inbox.events
    assert attached == ev.NodeAttached(
        node_id=NODE,
        incarnation=1,
        display_name="one[31m",
        addresses=("127.0.0.1:7", "1.2.3.4:8"),
    )
    assert reported == ev.NodeReported(node_id=NODE, incarnation=1, load=LOAD)
    assert isinstance(measured, ev.NeighbourMeasured) and measured.is_reachable
    assert detached == ev.NodeDetached(node_id=NODE, incarnation=1)


async def test_effects_become_commands_in_order_and_an_eviction_ends_the_stream() -> None:
    async with network() as net, net.channel() as channel:
        call = await attach(channel)
        net.service.perform_node(
            fx.AssignSpan(
                node_id=NODE,
                incarnation=1,
                epoch=7,
                model_id=SPEC.model_id,
                span=LayerSpan(1, 3),
                kv_tokens_min=64,
                reason="because",
            )
        )
        net.service.perform_node(fx.DrainNode(node_id=NODE, incarnation=1, limit_ms=5))
        assign = (await read(call)).assign_span
        assert (assign.allocation_epoch, assign.span.start, assign.span.end) == (7, 1, 3)
        assert (await read(call)).drain.limit_ms == 5
        net.service.perform_node(fx.UnassignSpan(node_id=NODE, incarnation=99, epoch=8))
        net.service.perform_node(
            fx.EvictNode(
                node_id=NODE,
                incarnation=1,
                reason=Reason(code="banned", message="m"),
                may_rejoin=False,
            )
        )
        assert (await read(call)).evict.reason == "banned"
        assert await call.read() is aio.EOF
        await until(lambda: isinstance(net.inbox.events[-1], ev.NodeDetached))


async def test_the_newest_incarnation_speaks_for_a_node() -> None:
    async with network() as net, net.channel() as first, net.channel() as second:
        old = await attach(first, incarnation=5)
        new = await attach(second, incarnation=6)
        evict = (await read(old)).evict
        assert (evict.reason, evict.may_rejoin) == ("already_connected", False)
        assert await old.read() is aio.EOF
        late = control_pb2_grpc.ControlServiceStub(first).Attach()
        await late.write(hello(4))
        assert (await read(late)).evict.reason == "already_connected"
        net.service.perform_node(fx.DrainNode(node_id=NODE, incarnation=6, limit_ms=5))
        assert (await read(new)).drain.limit_ms == 5
        kinds = [(type(event).__name__, event.incarnation) for event in net.inbox.events]  # type: ignore[union-attr]
        assert kinds == [("NodeAttached", 5), ("NodeDetached", 5), ("NodeAttached", 6)]


async def test_a_command_for_an_earlier_start_of_a_node_reaches_nobody() -> None:
    async with network() as net, net.channel() as channel:
        call = await attach(channel, incarnation=2)
        net.service.perform_node(fx.DrainNode(node_id=NODE, incarnation=1, limit_ms=1))
        net.service.perform_node(fx.DrainNode(node_id=NODE, incarnation=2, limit_ms=2))
        assert (await read(call)).drain.limit_ms == 2


async def test_a_node_that_lost_its_stream_unnoticed_may_attach_again() -> None:
    async with network() as net, net.channel() as first, net.channel() as second:
        await attach(first, incarnation=5)
        new = await attach(second, incarnation=5)
        await new.write(heartbeat(5))
        await until(lambda: len(net.inbox.events) == 4)
        kinds = [type(event).__name__ for event in net.inbox.events]
        assert kinds == ["NodeAttached", "NodeDetached", "NodeAttached", "NodeReported"]


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (heartbeat(), grpc.StatusCode.INVALID_ARGUMENT),
        (hello(0), grpc.StatusCode.INVALID_ARGUMENT),
        (hello(version=99), grpc.StatusCode.FAILED_PRECONDITION),
        (
            control_pb2.NodeReport(
                incarnation=1,
                hello=control_pb2.Hello(protocol_version=PROTOCOL_VERSION, addresses=["nonsense"]),
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_a_bad_first_report_is_refused(
    report: control_pb2.NodeReport, code: grpc.StatusCode
) -> None:
    async with network() as net, net.channel() as channel:
        call = control_pb2_grpc.ControlServiceStub(channel).Attach()
        await call.write(report)
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is code
        assert net.inbox.events == []


async def test_a_version_that_is_too_old_hears_which_one_is_needed() -> None:
    async with network() as net, net.channel() as channel:
        call = control_pb2_grpc.ControlServiceStub(channel).Attach()
        await call.write(hello(version=0))
        with pytest.raises(aio.AioRpcError, match="network 2 to 2"):
            await call.read()


async def test_silence_instead_of_a_hello_is_not_waited_for() -> None:
    async with network(hello_s=0.05) as net, net.channel() as channel:
        call = control_pb2_grpc.ControlServiceStub(channel).Attach()
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_nonsense_is_dropped_and_counted_and_a_flood_of_it_ends_the_stream() -> None:
    async with network() as net, net.channel() as channel:
        call = await attach(channel)
        nonsense = control_pb2.NodeReport(
            incarnation=1, heartbeat=control_pb2.Heartbeat(stage_ms=float("nan"))
        )
        await call.write(nonsense)
        await call.write(heartbeat(incarnation=99))
        await call.write(hello())
        await call.write(heartbeat())
        await until(lambda: len(net.inbox.events) == 2)
        assert net.service.num_reports_dropped == 3
        with pytest.raises((aio.AioRpcError, asyncio.InvalidStateError)):
            for _ in range(200):
                await call.write(nonsense)
            await call.read()
        await until(lambda: isinstance(net.inbox.events[-1], ev.NodeDetached))


async def test_a_node_that_never_reads_is_let_go_not_buffered_for() -> None:
    async with network() as net, net.channel() as channel:
        await attach(channel)
        drain = fx.DrainNode(node_id=NODE, incarnation=1, limit_ms=1)
        for _ in range(1_000):
            net.service.perform_node(drain)
        await until(lambda: isinstance(net.inbox.events[-1], ev.NodeDetached))


async def test_probe_echoes_no_more_than_its_limit() -> None:
    async with network() as net, net.channel() as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        response = await stub.Probe(control_pb2.ProbeRequest(response_bytes=1_000))
        assert len(response.padding) == 1_000


async def test_renewal_is_for_the_identity_of_the_certificate() -> None:
    async with network() as net, net.channel() as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        request = control_pb2.RenewRequest(csr_der=b"csr", identity_signature=b"good")
        assert (await stub.Renew(request)).certificate_chain_pem == b"chain of " + (
            NODE.encode() + b"csr"
        )
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Renew(control_pb2.RenewRequest(identity_signature=b"bad"))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_certificate_of_another_authority_gets_no_connection() -> None:
    stranger = CertificateAuthority.create(SystemClock())
    key = new_tls_key()
    async with network() as net:
        channel = secure_channel(
            net.address,
            ca_pem=net.ca.certificate_pem,
            target_name=COORDINATOR_NAME,
            certificate_pem=stranger.issue_node(make_csr(key, NODE), NODE),
            key_pem=key_to_pem(key),
        )
        async with channel:
            with pytest.raises(aio.AioRpcError) as caught:
                stub = control_pb2_grpc.ControlServiceStub(channel)
                await stub.Probe(control_pb2.ProbeRequest(), timeout=5)
        assert caught.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )


async def test_a_full_inbox_drops_heartbeats_but_not_the_stream() -> None:
    inbox = EventInbox(events_max=1)
    service = ControlService(inbox, OFFER, renew)
    ca = CertificateAuthority.create(SystemClock())
    pair = ca.issue_server([])

    def add(server: aio.Server) -> None:
        control_pb2_grpc.add_ControlServiceServicer_to_server(service, server)

    credentials = mtls_server_credentials(
        key_pem=pair.key_pem, certificate_pem=pair.certificate_pem, ca_pem=ca.certificate_pem
    )
    door = GrpcDoor(
        host="127.0.0.1", port=0, flag="--node-listen", credentials=credentials, calls_max=8
    )
    async with door.serve(add):
        net = Network(service, ListInbox(), ca, f"127.0.0.1:{door.port}")
        async with net.channel() as channel:
            call = await attach(channel)
            await until(lambda: len(inbox) == 1)
            await call.write(heartbeat())
            await until(lambda: inbox.num_refused == 1)
            assert not call.done()


async def test_a_taken_port_is_named_with_its_flag() -> None:
    async with network() as net:
        port = int(net.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"port {port} .* in use .* --node-listen"):
            check_bindable("127.0.0.1", port, flag="--node-listen")
