"""Joining a network: a token buys a certificate, once. And renewing it before it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
from grpc import aio

from node.agent.identity import (
    CertificateRequest,
    NodeCredentials,
    check_credentials,
    load_identity,
    with_certificate,
)
from plait import log
from plait.clock import Clock
from plait.crypto.certificates import COORDINATOR_NAME, TlsPair
from plait.crypto.identity import NodeIdentity, enrol_message, renew_message
from plait.crypto.tokens import JoinToken
from plait.errors import AuthenticationError, ConfigError, UnavailableError
from plait.wire.channel import secure_channel
from plait.wire.reach import Address, check_reachable
from plait.wire.status import error_from_rpc
from plait.wire.v1 import control_pb2, control_pb2_grpc

CALL_S: Final = 15.0
_log = log.get("enrol")


async def enrol(
    coordinator_address: str, token: str, home: Path, display_name: str
) -> NodeCredentials:
    """Trade the token for a certificate and save it under `home` (see `identity.node_home`).

    An identity that is there already is kept, so a node that joins again keeps its name. A token
    that this very node spent, in an earlier try whose answer was lost, is as good as a new one.

    Args:
        coordinator_address: HOST or HOST:PORT of the public door; empty: the token's own.
        token: the word that `plait token create` printed.

    Raises:
        ConfigError: token_malformed, token_truncated, token_version, bad_address, clock_skew.
        UnavailableError: dns_failed, connection_refused, unreachable, not_tls, not_coordinator.
        DeadlineError: connect_timeout, deadline_exceeded.
        AuthenticationError: wrong_ca, wrong_name; token_unknown, token_used, token_expired,
            token_revoked, node_banned; bad_certificate.
    """
    invitation = JoinToken.parse(token)
    if not coordinator_address and not invitation.address:
        raise ConfigError(
            "the token names no coordinator: give its address, HOST:PORT", reason="bad_address"
        )
    address = Address.parse(coordinator_address or invitation.address)
    identity = load_identity(home)
    request = CertificateRequest.make(identity.node_id)
    await check_reachable(address, ca_pem=invitation.ca_pem, target_name=COORDINATOR_NAME)
    asked = control_pb2.EnrolRequest(
        token_secret=invitation.secret,
        token_id=invitation.token_id,
        identity_key=identity.public_bytes,
        csr_der=request.csr_der,
        identity_signature=identity.sign(enrol_message(invitation.token_id, request.csr_der)),
        display_name=display_name,
    )
    try:
        response = await _call_enrol(address, invitation.ca_pem, asked)
    except AuthenticationError as refusal:
        if refusal.code != "token_used":
            raise
        response = await _by_identity(address, invitation.ca_pem, identity, request, refusal)
    credentials = NodeCredentials(
        home=home,
        identity=identity,
        display_name=display_name,
        network_id=invitation.network_id,
        tls=TlsPair(certificate_pem=response.certificate_chain_pem, key_pem=request.key_pem),
        ca_pem=invitation.ca_pem,
        ticket_key=response.ticket_key,
        coordinator_address=str(address),
        node_address=_node_address(response.node_address, address),
    )
    _check_answer(response, credentials)
    credentials.save()
    _log.info("enrolled", node_id=identity.node_id, network_id=credentials.network_id)
    return credentials


async def renew(
    credentials: NodeCredentials, clock: Clock, open_channel: Callable[[], aio.Channel]
) -> NodeCredentials:
    """A fresh certificate, checked and saved: over the node's own mTLS channel while the old one
    holds, by the identity alone, at the public door, once it has ended.

    New channels and servers must be built from what comes back; open streams go on.
    Raises AuthenticationError (node_banned, node_unknown, bad_certificate) and what `enrol` does.
    """
    if clock.unix_ms() >= credentials.expires_unix_ms:
        return await rejoin(credentials)
    request = CertificateRequest.make(credentials.node_id)
    channel = open_channel()
    try:
        response = await control_pb2_grpc.ControlServiceStub(channel).Renew(
            control_pb2.RenewRequest(
                csr_der=request.csr_der,
                identity_signature=credentials.identity.sign(renew_message(request.csr_der)),
            ),
            timeout=CALL_S,
        )
    except aio.AioRpcError as error:
        raise error_from_rpc(error) from None
    finally:
        await channel.close()
    renewed = with_certificate(credentials, request, response.certificate_chain_pem)
    _log.info("certificate_renewed", node_id=credentials.node_id)
    return renewed


async def rejoin(credentials: NodeCredentials) -> NodeCredentials:
    """A fresh certificate without a token, for a node that was away longer than the old one held.

    Raises as `enrol` does, and AuthenticationError(reason="node_unknown").
    """
    address = Address.parse(credentials.coordinator_address)
    request = CertificateRequest.make(credentials.node_id)
    await check_reachable(address, ca_pem=credentials.ca_pem, target_name=COORDINATOR_NAME)
    asked = _without_token(credentials.identity, request)
    response = await _call_enrol(address, credentials.ca_pem, asked)
    renewed = with_certificate(credentials, request, response.certificate_chain_pem)
    _log.info("rejoined", node_id=credentials.node_id)
    return renewed


async def _by_identity(
    address: Address,
    ca_pem: bytes,
    identity: NodeIdentity,
    request: CertificateRequest,
    refusal: AuthenticationError,
) -> control_pb2.EnrolResponse:
    """The answer for a node that is enrolled already; `refusal` again where it is not."""
    try:
        response = await _call_enrol(address, ca_pem, _without_token(identity, request))
    except AuthenticationError as error:
        raise (refusal if error.code == "node_unknown" else error) from None
    _log.info("token_was_ours", node_id=identity.node_id)
    return response


def _without_token(identity: NodeIdentity, request: CertificateRequest) -> control_pb2.EnrolRequest:
    return control_pb2.EnrolRequest(
        identity_key=identity.public_bytes,
        csr_der=request.csr_der,
        identity_signature=identity.sign(enrol_message("", request.csr_der)),
    )


async def _call_enrol(
    address: Address, ca_pem: bytes, request: control_pb2.EnrolRequest
) -> control_pb2.EnrolResponse:
    channel = secure_channel(str(address), ca_pem=ca_pem, target_name=COORDINATOR_NAME)
    try:
        stub = control_pb2_grpc.EnrolmentServiceStub(channel)
        return await stub.Enrol(request, timeout=CALL_S)
    except aio.AioRpcError as error:
        # TLS worked a moment ago, so an end that hangs up now asks for what we cannot have yet.
        if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE):
            raise UnavailableError(
                f"{address} does not let nodes in: give the coordinator's public port, not the "
                "one for nodes, and look whether it is still running",
                reason="not_coordinator",
            ) from None
        raise error_from_rpc(error) from None
    finally:
        await channel.close()


def _check_answer(response: control_pb2.EnrolResponse, credentials: NodeCredentials) -> None:
    try:
        check_credentials(credentials)
    except ConfigError as error:
        raise AuthenticationError(
            f"the coordinator sent unfit papers: {error.message}", reason="bad_certificate"
        ) from None
    if response.node_id != credentials.node_id or response.network_id != credentials.network_id:
        raise AuthenticationError(
            "the coordinator answered for another node or network", reason="bad_certificate"
        )


def _node_address(given: str, dialled: Address) -> str:
    """The node port's address; an empty host means the one that was dialled."""
    if given.startswith(":"):
        return str(Address.parse(str(Address(dialled.host, 1)).removesuffix("1") + given[1:]))
    return str(Address.parse(given))
