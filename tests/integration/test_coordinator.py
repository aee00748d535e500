"""A whole coordinator in this process, and a scripted node that speaks its protocols for real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import httpx
import pytest
from grpc import aio

from coordinator.assembly import core_of
from coordinator.config import CoordinatorConfig, Listen
from coordinator.core.events import KeyWeighed
from coordinator.core.view import NetworkView
from coordinator.main import Announcement, coordinator
from coordinator.models import served_models
from coordinator.shell.journal import read_entries, read_note, replay
from coordinator.view_json import network_from_json
from node.agent.enrol import enrol
from node.agent.identity import NodeCredentials
from plait.crypto.certificates import COORDINATOR_NAME
from plait.errors import ConfigError
from plait.types import HeldSpan, LayerSpan, ModelId, NodeLoad
from plait.wire import codec
from plait.wire.channel import secure_channel
from plait.wire.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    data_pb2,
    data_pb2_grpc,
    gateway_pb2,
    gateway_pb2_grpc,
)
from plait.wire.version import PROTOCOL_VERSION
from tests.kit.collector import collector
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until
from tests.unit.shell.test_journal import PROFILE

ANSWER = b"blue light"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
LOAD = NodeLoad(
    kv_tokens_reserved=0,
    num_requests=0,
    stage_ms=1.0,
    tokens_total=0,
    sent_bytes_total=0,
    frames_dropped_total=0,
    queue_tokens=0,
)


def config_for(folder: Path, **changes: object) -> CoordinatorConfig:
    settings: dict[str, object] = {
        "models": (str(folder / "tiny"),),
        "public": Listen("127.0.0.1", 0, "--listen"),
        "node": Listen("127.0.0.1", 0, "--node-listen"),
        "http": Listen("127.0.0.1", 0, "--http-listen"),
        "mqtt": Listen("127.0.0.1", 0, "--mqtt-listen"),
        "state_dir": folder / "state",
        "kv_tokens_min": 64,
        "plan_wait_ms": 100,
        "is_profile_written": False,
        "is_dashboard_enabled": False,
    }
    return CoordinatorConfig(**(settings | changes))  # type: ignore[arg-type]


@dataclass
class ScriptedNode:
    """Loads whatever it is told in no time and answers every request with ANSWER; a silent one
    opens the route and says no more."""

    credentials: NodeCredentials
    incarnation: int = 1
    span: LayerSpan | None = None
    closed: list[str] = field(default_factory=list)
    evicted: str = ""
    telemetry: str = ""
    digest: str = ""
    is_silent: bool = False
    memory_bytes: int = PROFILE.memory_bytes

    def channel(self) -> aio.Channel:
        tls = self.credentials.tls
        return secure_channel(
            self.credentials.node_address,
            ca_pem=self.credentials.ca_pem,
            target_name=COORDINATOR_NAME,
            certificate_pem=tls.certificate_pem,
            key_pem=tls.key_pem,
        )

    def report(self, **what: object) -> control_pb2.NodeReport:
        return control_pb2.NodeReport(incarnation=self.incarnation, **what)  # type: ignore[arg-type]

    async def run(self) -> None:
        async with self.channel() as channel, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._control(channel))
            tasks.create_task(self._gateway(channel))

    async def _control(self, channel: aio.Channel) -> None:
        call = control_pb2_grpc.ControlServiceStub(channel).Attach()
        hello = control_pb2.Hello(
            protocol_version=PROTOCOL_VERSION, display_name="s", addresses=["127.0.0.1:9"]
        )
        await call.write(self.report(hello=hello))
        beat = asyncio.create_task(self._beat(call))
        try:
            async for command in call:
                await self._obey(call, command)
        except aio.AioRpcError:
            pass
        finally:
            beat.cancel()

    async def _beat(
        self, call: "aio.StreamStreamCall[control_pb2.NodeReport, control_pb2.NodeCommand]"
    ) -> None:
        while True:
            await asyncio.sleep(0.3)
            await call.write(self.report(heartbeat=codec.load_to_proto(LOAD)))

    async def _obey(
        self,
        call: "aio.StreamStreamCall[control_pb2.NodeReport, control_pb2.NodeCommand]",
        command: control_pb2.NodeCommand,
    ) -> None:
        match command.WhichOneof("command"):
            case "welcome":
                self.telemetry = command.welcome.telemetry_url
                self.digest = command.welcome.models[0].source.digest
                profile = replace(PROFILE, memory_bytes=self.memory_bytes)
                await call.write(self.report(profiled=codec.profile_to_proto(profile)))
            case "assign_span":
                assign = command.assign_span
                self.span = codec.span_from_proto(assign.span)
                held = HeldSpan(
                    model_id=ModelId(assign.model_id),
                    span=self.span,
                    allocation_epoch=assign.allocation_epoch,
                    digest=self.digest,
                    weight_bytes=1,
                    read_bytes=1,
                    kv_tokens_max=512,
                )
                loaded = control_pb2.SpanLoaded(held=codec.held_span_to_proto(held))
                await call.write(self.report(span_loaded=loaded))
            case "evict":
                self.evicted = command.evict.reason

    async def _gateway(self, channel: aio.Channel) -> None:
        call = data_pb2_grpc.GatewayLinkServiceStub(channel).Exchange()
        attach = data_pb2.LinkAttach(incarnation=self.incarnation)
        await call.write(data_pb2.NodeToGateway(attach=attach))
        try:
            async for message in call:
                if message.WhichOneof("body") == "close":
                    self.closed.append(message.close.request_id)
                    continue
                answers = _answers(message.start)
                for answer in answers[:1] if self.is_silent else answers:
                    await call.write(answer)
        except aio.AioRpcError:
            pass


def _answers(start: data_pb2.StartRequest) -> list[data_pb2.NodeToGateway]:
    ticket = data_pb2.TicketPayload.FromString(start.open.ticket.payload)
    opened = data_pb2.Opened(request_id=ticket.request_id, epoch=ticket.epoch)
    answers = [data_pb2.NodeToGateway(opened=opened)]
    ids = [*(_byte_id(byte) for byte in ANSWER), 256]
    for number, token_id in enumerate(ids):
        is_last = number == len(ids) - 1
        token = data_pb2.SampledToken(
            request_id=ticket.request_id,
            epoch=ticket.epoch,
            position=len(start.prompt_token_ids) + number,
            token_id=token_id,
            finish_reason=common_pb2.FINISH_REASON_STOP if is_last else 0,  # type: ignore[arg-type]
        )
        answers.append(data_pb2.NodeToGateway(token=token))
    return answers


def _byte_id(byte: int) -> int:
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    letter = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))[0][0]
    return sorted(pre_tokenizers.ByteLevel.alphabet()).index(letter)


@asynccontextmanager
async def scripted_node(
    news: Announcement, home: Path, *, memory_bytes: int = PROFILE.memory_bytes
) -> AsyncIterator[ScriptedNode]:
    token = news.join_command.rpartition(" ")[2]
    credentials = await enrol(news.public_address, token, home, "s")
    node = ScriptedNode(credentials, memory_bytes=memory_bytes)
    task = asyncio.create_task(node.run())
    try:
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def public_channel(news: Announcement, state_dir: Path) -> aio.Channel:
    return secure_channel(
        news.public_address,
        ca_pem=(state_dir / "authority" / "ca.crt").read_bytes(),
        target_name=COORDINATOR_NAME,
    )


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def network_with(
    admin: "admin_pb2_grpc.AdminServiceAsyncStub", key: str, *, requests_finished: int
) -> NetworkView:
    """The view, once it counts so many finished requests: it is up to 250 ms old."""
    request = admin_pb2.GetNetworkRequest()
    async with asyncio.timeout(5):
        while True:
            response = await admin.GetNetwork(request, metadata=bearer(key))
            view = network_from_json(response.view_json)
            if view.counters.requests_finished == requests_finished:
                return view
            await asyncio.sleep(0.05)


async def wait_ready(news: Announcement) -> None:
    async with asyncio.timeout(20), httpx.AsyncClient() as client:
        while (await client.get(f"{news.http_url}/ready")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_node_joins_is_planned_with_and_answers_clients_through_both_doors(
    tmp_path: Path,
) -> None:
    write_tiny_model(tmp_path / "tiny")
    config = config_for(tmp_path)
    async with AsyncExitStack() as stack:
        news = await stack.enter_async_context(coordinator(config))
        nodes = scripted_node(news, tmp_path / "node")
        async with nodes as node:
            await wait_ready(news)
            assert node.span == LayerSpan(0, 4)
            assert node.telemetry.startswith("mqtts://:")
            assert news.client_key is not None
            async with public_channel(news, config.state_dir) as channel:
                stub = gateway_pb2_grpc.GatewayServiceStub(channel)
                request = gateway_pb2.GenerateRequest(prompt="why?", max_tokens=32)
                call = stub.Generate(request, metadata=bearer(news.client_key))
                events = [event async for event in call]
                text = "".join(e.delta.text for e in events if e.WhichOneof("event") == "delta")
                assert text.encode() == ANSWER
                assert events[-1].finished.reason == common_pb2.FINISH_REASON_STOP
                admin = admin_pb2_grpc.AdminServiceStub(channel)
                key = (config.state_dir / "admin.key").read_text()
                view = await network_with(admin, key, requests_finished=1)
                assert [n.state for n in view.nodes] == ["serving"]
                with pytest.raises(aio.AioRpcError) as caught:
                    await admin.GetNetwork(
                        admin_pb2.GetNetworkRequest(), metadata=bearer(news.client_key)
                    )
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                heavy = await admin.CreateApiKey(
                    admin_pb2.CreateApiKeyRequest(weight=2.5), metadata=bearer(key)
                )
            body = {"model": news.models[0], "messages": [{"role": "user", "content": "why?"}]}
            async with httpx.AsyncClient() as client:
                headers = {"authorization": f"Bearer {heavy.key}"}
                url = f"{news.http_url}/v1/chat/completions"
                answer = (await client.post(url, json=body, headers=headers)).json()
            assert answer["choices"][0]["message"]["content"].encode() == ANSWER
            await stack.aclose()
            assert not node.evicted  # what runs on nodes goes on: they come back
    journal = config.state_dir / "journal"
    told = [event for _, event in read_entries(journal)]
    kinds = [type(event).__name__ for event in told]
    assert KeyWeighed(key_id=heavy.key_id, weight=2.5) in told
    assert kinds.index("KeyWeighed") < len(kinds) - kinds[::-1].index("RequestSubmitted") - 1
    assert kinds.count("RequestSubmitted") == kinds.count("LastTokenSent") == 2
    seed = int(read_note(journal).removeprefix("seed="))
    core = core_of(config, served_models(config.models), news.network_id, seed)
    assert replay(journal, core) == len(kinds)
    counters = core.view(0).counters
    assert (counters.requests_finished, counters.routes_opened) == (2, 2)
    assert counters.tokens_generated == 2 * (len(ANSWER) + 1)


@pytest.mark.slow
async def test_a_client_that_leaves_frees_the_node_and_its_trace_says_so(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    with collector() as traces:
        config = config_for(
            tmp_path, is_mqtt_enabled=False, is_traced=True, otlp_endpoint=traces.url
        )
        await _leave(config, tmp_path)
    assert set(traces.paths) == {"/v1/traces"}
    spans = {span.name: span for span in traces.spans}
    assert set(spans) == {"plait.request", "queue", "select", "open", "prefill", "end"}
    root = spans.pop("plait.request")
    assert root.trace_id.hex() == TRACE and root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    assert "cancelled" in str(root.attributes) and "why?" not in str(traces.spans)


async def _leave(config: CoordinatorConfig, tmp_path: Path) -> None:
    async with coordinator(config) as news, scripted_node(news, tmp_path / "node") as node:
        node.is_silent = True
        await wait_ready(news)
        assert node.telemetry == ""
        async with public_channel(news, config.state_dir) as channel:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            request = gateway_pb2.GenerateRequest(prompt="why?", max_tokens=32, request_id="r1")
            parent = ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")
            call = stub.Generate(request, metadata=(*bearer(news.client_key or ""), parent))
            async for event in call:
                if event.WhichOneof("event") == "routed":
                    break
            call.cancel()
        await until(lambda: node.closed == ["r1"], timeout_s=1, what="the KV's release")


async def refusal(news: Announcement, state_dir: Path) -> aio.AioRpcError:
    async with public_channel(news, state_dir) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        request = gateway_pb2.GenerateRequest(prompt="why?", max_tokens=8)
        call = stub.Generate(request, metadata=bearer(news.client_key or ""))
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in call:
                pass
    return caught.value


@pytest.mark.slow
async def test_without_a_node_a_request_says_which_layers_are_missing(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    config = config_for(tmp_path, is_mqtt_enabled=False, request_wait_ms=200)
    async with coordinator(config) as news:
        error = await refusal(news, config.state_dir)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "0-3" in (error.details() or ""), error.details()
        async with httpx.AsyncClient() as client:
            ready = await client.get(f"{news.http_url}/ready")
        assert ready.status_code == 503
        assert ready.json()["models"][0]["missing_layers"] == [[0, 4]]


@pytest.mark.slow
async def test_with_too_little_memory_it_says_how_much_is_missing(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    config = config_for(tmp_path, is_mqtt_enabled=False, request_wait_ms=200)
    async with (
        coordinator(config) as news,
        scripted_node(news, tmp_path / "node", memory_bytes=1_000) as node,
        httpx.AsyncClient() as client,
        asyncio.timeout(20),
    ):
        advice = ""
        while "GiB" not in advice and "MiB" not in advice:
            ready = await client.get(f"{news.http_url}/ready")
            advice = ready.json()["models"][0]["advice"]
            await asyncio.sleep(0.1)
        assert node.span is None


@pytest.mark.slow
async def test_a_second_coordinator_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    config = config_for(tmp_path, is_mqtt_enabled=False)
    async with coordinator(config):
        with pytest.raises(ConfigError, match=r"another coordinator \(process \d+\)"):
            async with coordinator(config):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["public", "node", "http", "mqtt"])
async def test_a_taken_port_is_named_with_its_flag(tmp_path: Path, name: str) -> None:
    write_tiny_model(tmp_path / "tiny")
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        flag = {"public": "--listen", "node": "--node-listen", "http": "--http-listen"}
        listen = Listen("127.0.0.1", port, flag.get(name, "--mqtt-listen"))
        with pytest.raises(ConfigError, match=f"{port}.*in use.*{listen.flag}"):
            async with coordinator(config_for(tmp_path, **{name: listen})):
                pass
