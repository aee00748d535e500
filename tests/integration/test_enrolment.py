"""A node joins over real TLS sockets, and everything that should keep it out does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from node.agent.enrol import enrol, rejoin, renew
from node.agent.identity import (
    CertificateRequest,
    NodeCredentials,
    load_credentials,
    node_home,
    with_certificate,
)
from plait.clock import SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import COORDINATOR_NAME, make_csr, new_tls_key
from plait.crypto.identity import NodeIdentity, enrol_message, renew_message
from plait.crypto.tokens import JoinToken
from plait.errors import AuthenticationError, ConfigError
from plait.types import NodeId
from plait.wire.channel import secure_channel
from plait.wire.v1 import control_pb2, control_pb2_grpc
from tests.integration.enrolment_support import Network, node_channel, running_network


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    async with running_network(tmp_path / "coordinator") as running:
        yield running


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
    renewed = await renew(credentials, SystemClock(), lambda: node_channel(credentials))
    assert renewed.tls.certificate_pem != credentials.tls.certificate_pem
    assert load_credentials(tmp_path / "n").tls == renewed.tls
    await renew(renewed, SystemClock(), lambda: node_channel(renewed))


async def test_a_banned_node_cannot_renew_nor_join_again(network: Network, tmp_path: Path) -> None:
    credentials = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    await network.store.nodes.ban(credentials.node_id)
    with pytest.raises(AuthenticationError, match="banned"):
        await renew(credentials, SystemClock(), lambda: node_channel(credentials))
    with pytest.raises(AuthenticationError, match="banned"):
        await rejoin(credentials)
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


async def test_a_proof_for_another_request_is_refused(network: Network) -> None:
    token = JoinToken.parse(await network.token())
    identity, thief = NodeIdentity.generate(), NodeIdentity.generate()
    csr = make_csr(new_tls_key(), identity.node_id)
    good = {
        "token_id": token.token_id,
        "token_secret": token.secret,
        "identity_key": identity.public_bytes,
        "csr_der": csr,
        "identity_signature": identity.sign(enrol_message(token.token_id, csr)),
    }
    bad: dict[str, dict[str, object]] = {
        "bad_proof": {"csr_der": make_csr(new_tls_key(), identity.node_id)},
        "bad_proof ": {"identity_key": thief.public_bytes},
        "bad_proof  ": {"identity_key": b""},
        "bad_csr": {
            "csr_der": b"junk",
            "identity_signature": identity.sign(enrol_message(token.token_id, b"junk")),
        },
    }
    async with secure_channel(
        network.public_address, ca_pem=network.authority.ca_pem, target_name=COORDINATOR_NAME
    ) as channel:
        stub = control_pb2_grpc.EnrolmentServiceStub(channel)
        for reason, change in bad.items():
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Enrol(control_pb2.EnrolRequest(**{**good, **change}), timeout=5)  # type: ignore[arg-type]
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert dict(caught.value.trailing_metadata() or ())["plait-reason"] == reason.strip()
        wrong = control_pb2.EnrolRequest(**{**good, "token_secret": "x"})  # type: ignore[arg-type]
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Enrol(wrong, timeout=5)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        answer = await stub.Enrol(control_pb2.EnrolRequest(**good), timeout=5)  # type: ignore[arg-type]
    assert answer.node_id == identity.node_id, "none of the refusals used the token up"


async def test_renewal_needs_the_identity_not_just_the_certificate(
    network: Network, tmp_path: Path
) -> None:
    credentials = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    csr = make_csr(new_tls_key(), credentials.node_id)
    signature = NodeIdentity.generate().sign(renew_message(csr))
    with pytest.raises(AuthenticationError, match="proof"):
        await network.enrolment.renew(credentials.node_id, csr, signature)
    with pytest.raises(AuthenticationError, match="not enrolled"):
        await network.enrolment.renew(NodeId("nsomebody"), csr, signature)


async def test_an_unfit_certificate_is_not_kept(network: Network, tmp_path: Path) -> None:
    credentials = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    request = CertificateRequest.make(credentials.node_id)
    stranger = CertificateAuthority.create(SystemClock())
    ca = network.authority.ca
    for chain in (
        stranger.issue_node(request.csr_der, credentials.node_id),
        ca.issue_node(request.csr_der, NodeId("nsomebody")),
        ca.issue_node(make_csr(new_tls_key(), credentials.node_id), credentials.node_id),
        b"",
        b"junk",
    ):
        with pytest.raises(AuthenticationError) as caught:
            with_certificate(credentials, request, chain)
        assert caught.value.code == "bad_certificate"
    assert load_credentials(tmp_path / "n").tls == credentials.tls


async def test_a_node_that_joins_again_keeps_its_name(network: Network, tmp_path: Path) -> None:
    first = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    again = await enrol(network.public_address, await network.token(), tmp_path / "n", "y")
    assert again.node_id == first.node_id
    assert again.tls != first.tls
    assert (await network.store.nodes.require(first.node_id)).display_name == "y"


async def test_the_address_may_come_with_the_token(network: Network, tmp_path: Path) -> None:
    token = JoinToken.parse(await network.token())
    with pytest.raises(ConfigError, match="names no coordinator"):
        await enrol("", token.encode(), tmp_path / "n", "x")
    addressed = JoinToken(
        token_id=token.token_id,
        secret=token.secret,
        ca_der=token.ca_der,
        address=network.public_address,
    )
    await enrol("", addressed.encode(), tmp_path / "n", "x")


@pytest.mark.parametrize("name", ["identity.pem", "tls.pem"])
async def test_papers_that_others_can_read_are_refused(
    network: Network, tmp_path: Path, name: str
) -> None:
    await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    (tmp_path / "n" / name).chmod(0o640)
    with pytest.raises(ConfigError) as caught:
        load_credentials(tmp_path / "n")
    assert caught.value.code == "key_file_open"


@pytest.mark.parametrize("name", ["tls.pem", "node.json", "ca.crt"])
async def test_damaged_papers_are_a_config_error(
    network: Network, tmp_path: Path, name: str
) -> None:
    await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    (tmp_path / "n" / name).write_bytes(b'{"node_id": 3}')
    with pytest.raises(ConfigError):
        load_credentials(tmp_path / "n")


def test_a_node_that_never_joined_says_how(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plait node join"):
        load_credentials(tmp_path)
    for name in ("", "../up", "a/b", "dé"):
        with pytest.raises(ConfigError):
            node_home(name)


async def test_an_identity_that_never_enrolled_gets_nothing_without_a_token(
    network: Network, tmp_path: Path
) -> None:
    credentials = await enrol(network.public_address, await network.token(), tmp_path / "n", "x")
    stranger = replace(credentials, identity=NodeIdentity.generate())
    with pytest.raises(AuthenticationError) as caught:
        await rejoin(stranger)
    assert caught.value.code == "node_unknown"
    assert len(await network.store.nodes.list_nodes()) == 1
