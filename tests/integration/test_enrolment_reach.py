"""Why a coordinator could not be reached: each cause has its own word and its own help."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st

from node.agent.enrol import enrol, renew
from node.agent.identity import load_credentials
from plait.clock import ManualClock, SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import COORDINATOR_NAME, node_tls_name
from plait.crypto.tokens import new_join_token
from plait.errors import ConfigError, PlaitError
from plait.wire.channel import secure_channel
from plait.wire.reach import Address, check_reachable
from plait.wire.v1 import control_pb2, control_pb2_grpc
from tests.integration.enrolment_support import Network, node_channel, running_network

CA = CertificateAuthority.create(SystemClock())
DAY_MS = 86_400_000


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    async with running_network(tmp_path / "coordinator") as running:
        yield running


async def refusal(address: str, token: str, home: Path) -> str:
    with pytest.raises(PlaitError) as caught:
        await enrol(address, token, home, "x")
    assert not (home / "node.json").exists()
    return caught.value.code


def token_for_nowhere() -> str:
    return new_join_token(ca_der=CA.certificate_der).encode()


async def test_a_name_that_does_not_exist(tmp_path: Path) -> None:
    assert await refusal("no-such-host.invalid", token_for_nowhere(), tmp_path) == "dns_failed"


async def test_a_port_where_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert await refusal(address, token_for_nowhere(), tmp_path) == "connection_refused"


@contextlib.asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[Address]:
    """Something that is no coordinator: it answers in its own way, or never."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is not None:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address(*server.sockets[0].getsockname()[:2])


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b""])
async def test_a_port_that_speaks_something_else(tmp_path: Path, answer: bytes) -> None:
    async with listening(answer) as address:
        assert await refusal(str(address), token_for_nowhere(), tmp_path) == "not_tls"


async def test_a_port_that_never_answers() -> None:
    async with listening(None) as address:
        with pytest.raises(PlaitError) as caught:
            await check_reachable(
                address, ca_pem=CA.certificate_pem, target_name=COORDINATOR_NAME, limit_s=0.2
            )
    assert caught.value.code == "connect_timeout"
    assert "firewall" in caught.value.message


async def test_the_node_port_instead_of_the_public_one(network: Network, tmp_path: Path) -> None:
    reason = await refusal(network.node_address, await network.token(), tmp_path / "n")
    assert reason == "not_coordinator"


async def test_a_port_of_the_network_that_is_not_its_coordinator(network: Network) -> None:
    with pytest.raises(PlaitError) as caught:
        await check_reachable(
            Address.parse(network.public_address),
            ca_pem=network.authority.ca_pem,
            target_name="nsomebody.plait",
        )
    assert caught.value.code == "wrong_name"


@pytest.mark.parametrize("days", [-91, 2])
async def test_a_clock_that_is_wrong(tmp_path: Path, days: int) -> None:
    clock = ManualClock(unix_ms=SystemClock().unix_ms() - 100 * DAY_MS)
    keys = tmp_path / "coordinator"
    async with running_network(keys, clock=clock):
        pass  # the authority is old enough for either clock
    clock.advance((100 + days) * DAY_MS)
    (keys / "keys" / "server.crt").unlink()
    async with running_network(keys, clock=clock) as network:
        reason = await refusal(network.public_address, await network.token(), tmp_path / "n")
    assert reason == "clock_skew"


async def test_a_certificate_that_ended_shuts_the_node_out_until_it_rejoins(tmp_path: Path) -> None:
    clock = ManualClock(unix_ms=SystemClock().unix_ms() - 8 * DAY_MS)
    async with running_network(tmp_path / "coordinator", clock=clock) as network:
        old = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
        probe = control_pb2.ProbeRequest(response_bytes=1)
        async with node_channel(old) as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await control_pb2_grpc.ControlServiceStub(channel).Probe(probe, timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        clock.advance(8 * DAY_MS)
        fresh = await renew(old, clock, lambda: node_channel(old))
        assert load_credentials(tmp_path / "n") == fresh
        async with node_channel(fresh) as channel:
            await control_pb2_grpc.ControlServiceStub(channel).Probe(probe, timeout=5)
        assert fresh.node_id == old.node_id


async def test_a_running_coordinator_renews_its_own_certificate(tmp_path: Path) -> None:
    clock = ManualClock(unix_ms=SystemClock().unix_ms() - 61 * DAY_MS)
    async with running_network(tmp_path / "coordinator", clock=clock) as network:
        host, _, port = network.public_address.rpartition(":")

        async def shown() -> str:
            return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))

        before = await shown()
        credentials = await enrol(
            network.public_address, await network.token(), tmp_path / "n", "x"
        )
        del credentials
        assert await shown() == before
        clock.advance(61 * DAY_MS)
        after = await shown()
        assert after != before
        async with secure_channel(
            network.public_address,
            ca_pem=network.authority.ca_pem,
            target_name=COORDINATOR_NAME,
        ) as channel:
            stub = control_pb2_grpc.EnrolmentServiceStub(channel)
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Enrol(control_pb2.EnrolRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_node_certificate_is_no_coordinators(network: Network, tmp_path: Path) -> None:
    """A node of the network cannot pose as its coordinator, nor as another node."""
    node = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    server = aio.server()
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials([(node.tls.key_pem, node.tls.certificate_pem)]),
    )
    await server.start()
    try:
        address = Address("127.0.0.1", port)
        name = node_tls_name(node.node_id)
        await check_reachable(address, ca_pem=node.ca_pem, target_name=name)
        for other in (COORDINATOR_NAME, "nanothernode.plait"):
            with pytest.raises(PlaitError) as caught:
                await check_reachable(address, ca_pem=node.ca_pem, target_name=other)
            assert caught.value.code == "wrong_name"
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("example.org", Address("example.org", 7420)),
        ("example.org:1", Address("example.org", 1)),
        (" 10.0.0.1:65535 ", Address("10.0.0.1", 65535)),
        ("[::1]:9", Address("::1", 9)),
        ("[fe80::1]", Address("fe80::1", 7420)),
        ("fe80::1", Address("fe80::1", 7420)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", ":", ":7", "a:", "a:b", "a:0", "a:65536", "[::1", "[::1]x", "http://a:1", "a b:1"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(text)
    assert caught.value.code == "bad_address"


@given(st.text(max_size=60))
def test_random_text_is_an_address_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        address = Address.parse(text)
        assert Address.parse(str(address)) == address
