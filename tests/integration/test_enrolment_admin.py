"""The operator's door over TLS, by stub and by command line."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio
from typer.testing import CliRunner, Result

from coordinator.core.events import NodeDrainAsked, ReplanAsked
from coordinator.core.view import CountersView, NetworkView, NodeView, PlanView
from coordinator.ports import KeptRequest
from coordinator.shell.admin import AdminService
from coordinator.shell.store import Store
from node.agent.enrol import enrol, rejoin
from plait.cli.app import app
from plait.cli.token import parse_duration_s
from plait.config import ClientProfile
from plait.crypto.certificates import COORDINATOR_NAME
from plait.errors import ConfigError, PlaitError
from plait.wire.channel import secure_channel
from plait.wire.status import error_from_rpc
from plait.wire.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc
from plait.wire.version import PROTOCOL_VERSION
from tests.integration.enrolment_support import (
    Network,
    node_channel,
    running_network,
)
from tests.kit.inbox import ListInbox
from tests.unit.dashboard.fakes import request_view

ADDRESS = "h.example:7420"
NODE = NodeView(
    node_id="nabc",
    display_name="attic",
    state="serving",
    incarnation=1,
    model_id=None,
    span=(0, 4),
    span_reason="",
    device_kind="cpu",
    device_name="cpu",
    memory_bytes=0,
    weight_bytes=0,
    read_bytes=0,
    compute_dtype="float32",
    decode_layer_ms=0.0,
    prefill_layer_ms_per_token=0.0,
    coordinator_rtt_ms=0.0,
    up_bytes_per_s=0.0,
    down_bytes_per_s=0.0,
    kv_tokens_max=0,
    kv_tokens_reserved=0,
    num_requests=0,
    stage_ms=0.0,
    predicted_stage_ms=0.0,
    tokens_total=0,
    sent_bytes_total=0,
    frames_dropped_total=0,
    load_phase="",
    load_done_bytes=0,
    load_total_bytes=0,
    last_error="",
    attached_ms=0,
    neighbour_rtt_ms=(),
)


class OneView:
    """A network with one node and a plan."""

    def view(self) -> NetworkView:
        return NetworkView(
            network_id="net",
            software_version="0",
            now_ms=5,
            nodes=(NODE,),
            models=(),
            requests=(),
            num_queued=0,
            plan=PlanView(
                epoch=4,
                solver="x",
                status="optimal",
                objective_tokens_per_s=1.0,
                bound_tokens_per_s=1.0,
                solve_ms=1,
                warnings=(),
            ),
            counters=CountersView(
                requests_submitted=0,
                requests_finished=0,
                requests_failed=0,
                requests_cancelled=0,
                routes_opened=0,
                routes_broken=0,
                tokens_generated=0,
                events_ignored=0,
            ),
        )


def add_admin(server: aio.Server, store: Store, inbox: ListInbox) -> None:
    service = AdminService(
        views=OneView(),
        keys=store.keys,
        tokens=store.tokens,
        nodes=store.nodes,
        routes=store.routes,
        inbox=inbox,
        public_address=ADDRESS,
    )
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    async with running_network(tmp_path / "coordinator", add_public=add_admin) as running:
        yield running


@pytest.fixture
async def operator_key(network: Network) -> str:
    secret, _ = await network.store.keys.create_key(display_name="op", is_admin=True)
    return secret


@pytest.fixture
async def stub(network: Network) -> AsyncIterator["admin_pb2_grpc.AdminServiceAsyncStub"]:
    async with secure_channel(
        network.public_address, ca_pem=network.authority.ca_pem, target_name=COORDINATOR_NAME
    ) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def test_every_call_wants_an_operators_key(
    network: Network, stub: "admin_pb2_grpc.AdminServiceAsyncStub"
) -> None:
    client, _ = await network.store.keys.create_key(display_name="c", is_admin=False)
    former, entry = await network.store.keys.create_key(display_name="f", is_admin=True)
    await network.store.keys.revoke_key(entry.key_id)
    unauthenticated, denied = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
    methods = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods
    assert len(methods) == 13
    for method in methods:
        request = getattr(admin_pb2, method.input_type.name)()
        for metadata, code, reason in (
            ((), unauthenticated, "unauthenticated"),
            ((("authorization", former),), unauthenticated, "unauthenticated"),
            (bearer("sk-plait-aaaaaaaaaaaa-" + "x" * 43), unauthenticated, "key_unknown"),
            (bearer(former), unauthenticated, "key_revoked"),
            (bearer(client), denied, "not_admin"),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await getattr(stub, method.name)(request, metadata=metadata, timeout=5)
            assert caught.value.code() is code, method.name
            assert dict(caught.value.trailing_metadata() or ())["plait-reason"] == reason
    assert network.inbox.events == []
    assert await network.store.tokens.list_tokens() == []


async def test_an_operator_sees_and_steers(
    network: Network, stub: "admin_pb2_grpc.AdminServiceAsyncStub", operator_key: str
) -> None:
    metadata = bearer(operator_key)
    view = await stub.GetNetwork(admin_pb2.GetNetworkRequest(), metadata=metadata, timeout=5)
    assert json.loads(view.view_json)["nodes"][0]["span"] == [0, 4]
    await stub.DrainNode(admin_pb2.DrainNodeRequest(node_id="nabc"), metadata=metadata, timeout=5)
    plan = await stub.Replan(admin_pb2.ReplanRequest(), metadata=metadata, timeout=5)
    assert plan.allocation_epoch == 5
    assert network.inbox.events == [
        NodeDrainAsked(
            node_id=NODE.node_id,  # type: ignore[arg-type]
            incarnation=None,
            reason="the operator asked for it",
            limit_ms=10_000,
        ),
        ReplanAsked(),
    ]


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("DrainNode", admin_pb2.DrainNodeRequest(node_id="nxyz"), "NOT_FOUND"),
        (
            "DrainNode",
            admin_pb2.DrainNodeRequest(node_id="nabc", limit_ms=4_000_000),
            "INVALID_ARGUMENT",
        ),
        ("BanNode", admin_pb2.BanNodeRequest(node_id="nabc"), "NOT_FOUND"),
        ("GetRequest", admin_pb2.GetRequestRequest(request_id="r"), "NOT_FOUND"),
        ("RevokeApiKey", admin_pb2.RevokeApiKeyRequest(key_id="nope"), "NOT_FOUND"),
        ("WeighApiKey", admin_pb2.WeighApiKeyRequest(key_id="nope", weight=2), "NOT_FOUND"),
        ("WeighApiKey", admin_pb2.WeighApiKeyRequest(key_id="nope"), "INVALID_ARGUMENT"),
        ("CreateApiKey", admin_pb2.CreateApiKeyRequest(weight=-1), "INVALID_ARGUMENT"),
        ("RevokeEnrolmentToken", admin_pb2.RevokeEnrolmentTokenRequest(token_id="x"), "NOT_FOUND"),
        (
            "CreateEnrolmentToken",
            admin_pb2.CreateEnrolmentTokenRequest(valid_s=2**32 - 1),
            "INVALID_ARGUMENT",
        ),
        (
            "CreateApiKey",
            admin_pb2.CreateApiKeyRequest(display_name="x" * 200),
            "INVALID_ARGUMENT",
        ),
    ],
)
async def test_what_cannot_be_done_is_told(
    stub: "admin_pb2_grpc.AdminServiceAsyncStub",
    operator_key: str,
    method: str,
    request_: object,
    code: str,
) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await getattr(stub, method)(request_, metadata=bearer(operator_key), timeout=5)
    assert caught.value.code().name == code


async def test_an_operator_cannot_lock_itself_out(
    network: Network, stub: "admin_pb2_grpc.AdminServiceAsyncStub", operator_key: str
) -> None:
    (entry,) = await network.store.keys.list_keys()
    with pytest.raises(aio.AioRpcError, match="cannot revoke itself"):
        await stub.RevokeApiKey(
            admin_pb2.RevokeApiKeyRequest(key_id=entry.key_id),
            metadata=bearer(operator_key),
            timeout=5,
        )


class CommandLine:
    """`plait token ...` with a profile of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def __call__(self, *words: str) -> Result:
        environment = {"PLAIT_HOME": str(self._home), "COLUMNS": "200"}
        return await asyncio.to_thread(
            CliRunner().invoke, app, ["token", *words], env={**os.environ, **environment}
        )


def last_line(result: Result) -> str:
    """The servers of this process log to the same output before it."""
    return result.stdout.strip().splitlines()[-1]


@pytest.fixture
async def plait(network: Network, operator_key: str, tmp_path: Path) -> CommandLine:
    profile = ClientProfile(
        address=network.public_address,
        ca_pem=network.authority.ca_pem.decode(),
        api_key=operator_key,
    )
    profile.save(tmp_path / "home" / "client.json")
    return CommandLine(tmp_path / "home")


async def test_the_printed_line_lets_a_node_in(
    network: Network, plait: CommandLine, tmp_path: Path
) -> None:
    made = await plait("create", "--valid", "2h", "--name", "attic")
    assert made.exit_code == 0, made.output
    words = last_line(made).split()
    assert words[:4] == ["plait", "node", "join", ADDRESS]
    assert words[4] == "--token"
    node = await enrol(network.public_address, words[5], tmp_path / "n", "attic")
    listed = (await plait("list")).stdout
    assert "attic" in listed
    assert "used" in listed
    assert node.node_id in listed
    assert words[5] not in listed
    assert last_line(await plait("create", "--quiet")).startswith("plait1.")


async def test_tokens_and_keys_are_revoked_by_command(network: Network, plait: CommandLine) -> None:
    await plait("create")
    (token,) = await network.store.tokens.list_tokens()
    assert (await plait("revoke", token.token_id)).exit_code == 0
    assert "revoked" in (await plait("list")).stdout

    key = last_line(await plait("key", "create", "--name", "[bold]Ada", "--quiet"))
    entry = await network.store.keys.verify_key(key)
    assert not entry.is_admin
    assert "[bold]Ada" in (await plait("key", "list")).stdout
    heavy = last_line(await plait("key", "create", "--weight", "2.5", "--quiet"))
    heavy_entry = await network.store.keys.verify_key(heavy)
    assert heavy_entry.weight == 2.5 and entry.weight == 1.0
    await plait("key", "weigh", heavy_entry.key_id, "4")
    assert (await network.store.keys.verify_key(heavy)).weight == 4.0
    listed = (await plait("key", "list")).stdout.splitlines()
    (row,) = [line for line in listed if heavy_entry.key_id in line]
    assert row.split()[2] == "4", row
    options = ("--tokens-per-min", "9000", "--model", "tiny", "--expires-in", "2w")
    assert (await plait("key", "limit", heavy_entry.key_id, *options)).exit_code == 0
    limits = (await network.store.keys.verify_key(heavy)).limits
    assert (limits.tokens_per_min, limits.requests_per_min) == (9000, None)
    assert limits.models == ("tiny",) and limits.expires_unix_ms is not None
    assert "9,000 tokens/min" in (await plait("key", "list")).stdout
    assert "no limits" in (await plait("key", "limit", heavy_entry.key_id)).stdout
    once = last_line(await plait("key", "create", "--requests-per-min", "5", "--quiet"))
    assert (await network.store.keys.verify_key(once)).limits.requests_per_min == 5
    refused = await plait("key", "create", "--weight", "0")
    assert refused.exception is not None and "above 0" in str(refused.exception)
    await plait("key", "revoke", entry.key_id)
    with pytest.raises(PlaitError):
        await network.store.keys.verify_key(key)


async def test_a_banned_node_is_shut_out_and_may_come_back(
    network: Network, plait: CommandLine, tmp_path: Path
) -> None:
    node = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")

    async def attach() -> str:
        """The first command, or the refusal."""
        async with node_channel(node) as channel:
            call = control_pb2_grpc.ControlServiceStub(channel).Attach(timeout=5)
            hello = control_pb2.Hello(protocol_version=PROTOCOL_VERSION, addresses=["127.0.0.1:1"])
            await call.write(control_pb2.NodeReport(incarnation=1, hello=hello))
            try:
                command = await call.read()
                assert isinstance(command, control_pb2.NodeCommand)
                return command.WhichOneof("command") or ""
            except aio.AioRpcError as error:
                return error_from_rpc(error).code

    assert await attach() == "welcome"
    assert (await plait("ban", node.node_id)).exit_code == 0
    assert await attach() == "node_banned"
    with pytest.raises(PlaitError, match="banned"):
        await rejoin(node)
    assert (await plait("ban", node.node_id, "--lift")).exit_code == 0
    assert await attach() == "welcome"


async def test_the_command_line_says_what_failed(
    network: Network, plait: CommandLine, tmp_path: Path
) -> None:
    unknown = await plait("revoke", "0011")
    assert isinstance(unknown.exception, PlaitError)
    assert unknown.exception.code == "not_found"
    nowhere = await CommandLine(tmp_path / "empty")("list")
    assert isinstance(nowhere.exception, ConfigError)
    assert "client profile" in nowhere.exception.message


async def test_status_follows_the_environment_as_the_sdk_does(
    network: Network, operator_key: str, tmp_path: Path
) -> None:
    environment = {
        "PLAIT_HOME": str(tmp_path / "empty"),
        "PLAIT_ADDRESS": network.public_address,
        "PLAIT_API_KEY": operator_key,
        "PLAIT_CA": network.authority.ca_pem.decode(),
    }
    past = replace(request_view(3, state="finished"), request_id="of-an-earlier-process")
    names = {past.route[0].node_id: "old-tower"}
    await network.store.routes.record([KeptRequest(request=past, names=names)])

    async def run(*words: str) -> Result:
        shown = await asyncio.to_thread(
            CliRunner().invoke, app, words, env={**os.environ, **environment}
        )
        assert shown.exit_code == 0, shown.output
        return shown

    (node,) = json.loads(last_line(await run("status", "--json")))["nodes"]
    assert node["node_id"] == "nabc"
    assert "chain: old-tower 0-9 ->" in (await run("request", "show", "of-an")).output


def test_durations() -> None:
    assert [parse_duration_s(text) for text in ("90", "30m", "12H", "1d", "2w")] == [
        90,
        1_800,
        43_200,
        86_400,
        1_209_600,
    ]
    for text in ("", "0", "-1d", "1y", "d", "1.5h", "9" * 12, "99999w", "٣d"):
        with pytest.raises(ConfigError):
            parse_duration_s(text)
