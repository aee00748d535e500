"""A node joins over real TLS sockets, and everything that should keep it out does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc import aio

from coordinator.shell.authority import Authority
from coordinator.shell.enrol import Enrolment, EnrolmentService
from coordinator.shell.store import Store, open_store
from node.agent.enrol import enrol, renew
from node.agent.identity import (
    CertificateRequest,
    NodeCredentials,
    load_credentials,
    with_certificate,
)
from plait.clock import SystemClock
from plait.crypto.certificates import COORDINATOR_NAME, node_tls_name
from plait.crypto.identity import NodeIdentity, enrol_message
from plait.crypto.tokens import JoinToken
from plait.errors import AuthenticationError, ConfigError, DeadlineError, UnavailableError
from plait.wire.channel import peer_node_id, secure_channel, server_options
from plait.wire.status import error_from_rpc
from plait.wire.v1 import control_pb2, control_pb2_grpc


@dataclass(frozen=True)
class Network:
    """A coordinator's two doors on loopback."""

    authority: Authority
    store: Store
    enrolment: Enrolment
    public_address: str
    node_address: str

    async def token(self, valid_s: int = 60) -> str:
        token, _entry = await self.store.tokens.create_token(display_name="t", valid_s=valid_s)
        return token


class Renewals(control_pb2_grpc.ControlServiceServicer):
    """The control service's renewal, as the shell serves it."""

    def __init__(self, enrolment: Enrolment) -> None:
        self._enrolment = enrolment
        self.seen: list[str | None] = []

    async def Renew(self, request, context):  # type: ignore[no-untyped-def]
        node_id = peer_node_id(context)
        self.seen.append(node_id)
        assert node_id is not None
        try:
            chain = await self._enrolment.renew(
                node_id, request.csr_der, request.identity_signature
            )
        except AuthenticationError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)
        return control_pb2.RenewResponse(certificate_chain_pem=chain)


@contextlib.asynccontextmanager
async def running_network(folder: Path) -> AsyncIterator[Network]:
    clock = SystemClock()
    authority = Authority.open(folder / "keys", clock, names=("localhost", "127.0.0.1"))
    async with open_store(folder / "store.db", clock, ca_der=authority.ca.certificate_der) as store:
        enrolment = Enrolment(ca=authority.ca, tokens=store.tokens, nodes=store.nodes)
        public, private = aio.server(options=server_options()), aio.server()
        node_port = private.add_secure_port("127.0.0.1:0", authority.mtls_credentials())
        public_port = public.add_secure_port("127.0.0.1:0", authority.tls_credentials())
        control_pb2_grpc.add_EnrolmentServiceServicer_to_server(
            EnrolmentService(
                enrolment,
                ticket_key=authority.tickets.public_bytes,
                node_address=f":{node_port}",
            ),
            public,
        )
        control_pb2_grpc.add_ControlServiceServicer_to_server(Renewals(enrolment), private)
        await public.start()
        await private.start()
        try:
            yield Network(
                authority=authority,
                store=store,
                enrolment=enrolment,
                public_address=f"127.0.0.1:{public_port}",
                node_address=f"127.0.0.1:{node_port}",
            )
        finally:
            await asyncio.gather(public.stop(None), private.stop(None))


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    async with running_network(tmp_path / "coordinator") as running:
        yield running


def node_channel(credentials: NodeCredentials) -> aio.Channel:
    return secure_channel(
        credentials.node_address,
        ca_pem=credentials.ca_pem,
        target_name=COORDINATOR_NAME,
        certificate_pem=credentials.tls.certificate_pem,
        key_pem=credentials.tls.key_pem,
    )


async def test_a_node_joins_and_keeps_its_papers(network: Network, tmp_path: Path) -> None:
    home = tmp_path / "node"
    credentials = await enrol(network.public_address, await network.token(), home, "attic")
    assert credentials.network_id == network.authority.network_id
    assert credentials.ticket_key == network.authority.tickets.public_bytes
    assert credentials.node_address == network.node_address
    assert load_credentials(home) == credentials
    enrolled = await network.store.nodes.require(credentials.node_id)
    assert (enrolled.display_name, enrolled.identity_key) == (
        "attic",
        credentials.identity.public_bytes,
    )
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in home.iterdir()}
    assert modes["identity.pem"] == modes["tls.pem"] == modes["node.json"] == "0o600"
    assert oct(home.stat().st_mode & 0o777) == "0o700"


async def test_the_certificate_opens_the_node_port_and_renews(
    network: Network, tmp_path: Path
) -> None:
    credentials = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    async with node_channel(credentials) as channel:
        renewed = await renew(credentials, channel)
    assert renewed.tls.certificate_pem != credentials.tls.certificate_pem
    assert load_credentials(tmp_path / "n").tls == renewed.tls
    async with node_channel(renewed) as channel:
        await renew(renewed, channel)


async def test_a_banned_node_cannot_renew_nor_join_again(network: Network, tmp_path: Path) -> None:
    credentials = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    await network.store.nodes.ban(credentials.node_id)
    async with node_channel(credentials) as channel:
        with pytest.raises(AuthenticationError, match="banned"):
            await renew(credentials, channel)
    token = await network.token()
    with pytest.raises(AuthenticationError) as caught:
        await enrol(network.public_address, token, tmp_path / "n", "x")
    assert caught.value.code == "node_banned"
    entries = {e.token_id: e.state for e in await network.store.tokens.list_tokens()}
    assert entries[JoinToken.parse(token).token_id] == "unused"


async def test_without_a_certificate_the_node_port_is_shut(
    network: Network, tmp_path: Path
) -> None:
    async with secure_channel(
        network.node_address, ca_pem=network.authority.ca_pem, target_name=COORDINATOR_NAME
    ) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Renew(control_pb2.RenewRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_token_works_once(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    await enrol(network.public_address, token, tmp_path / "a", "a")
    with pytest.raises(AuthenticationError) as caught:
        await enrol(network.public_address, token, tmp_path / "b", "b")
    assert caught.value.code == "token_used"
    assert "plait token create" in caught.value.message


async def test_of_many_at_once_one_wins(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    outcomes = await asyncio.gather(
        *(enrol(network.public_address, token, tmp_path / f"n{i}", "x") for i in range(8)),
        return_exceptions=True,
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, NodeCredentials)]
    lost = [outcome.code for outcome in outcomes if isinstance(outcome, AuthenticationError)]
    assert len(won) == 1
    assert lost == ["token_used"] * 7
    assert len(await network.store.nodes.list_nodes()) == 1


async def test_a_revoked_token_is_refused(network: Network, tmp_path: Path) -> None:
    token = await network.token()
    await network.store.tokens.revoke_token(JoinToken.parse(token).token_id)
    with pytest.raises(AuthenticationError) as caught:
        await enrol(network.public_address, token, tmp_path / "n", "x")
    assert caught.value.code == "token_revoked"


async def test_a_token_of_another_network_is_told_apart(network: Network, tmp_path: Path) -> None:
    async with running_network(tmp_path / "other") as other:
        with pytest.raises(AuthenticationError) as caught:
            await enrol(network.public_address, await other.token(), tmp_path / "n", "x")
    assert caught.value.code == "wrong_ca"
    assert "another network" in caught.value.message


async def test_an_unknown_secret_is_refused(network: Network, tmp_path: Path) -> None:
    token = JoinToken.parse(await network.token())
    forged = JoinToken(token_id=token.token_id, secret="00" * 24, ca_der=token.ca_der)
    with pytest.raises(AuthenticationError) as caught:
        await enrol(network.public_address, forged.encode(), tmp_path / "n", "x")
    assert caught.value.code == "token_unknown"
    await enrol(network.public_address, token.encode(), tmp_path / "n", "x")
