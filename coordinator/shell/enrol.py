"""Lets nodes in: a single-use token and a proof of identity become a certificate."""

from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

import grpc
from grpc import aio

from coordinator.shell import preflight
from coordinator.shell.preflight import Preflight
from coordinator.shell.store_nodes import EnrolledNodes, identity_conflict
from coordinator.shell.store_tokens import EnrolmentTokens
from plait import log
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import csr_public_key
from plait.crypto.identity import check_identity_signature, enrol_message, renew_message
from plait.errors import AuthenticationError, InvalidRequestError, PlaitError
from plait.types import NodeId
from plait.wire.status import REASON_KEY, abort_with
from plait.wire.v1 import control_pb2, control_pb2_grpc

_log = log.get("enrolment")
Q = TypeVar("Q")
A = TypeVar("A")
_MALFORMED: Final = frozenset({"bad_proof", "bad_csr"})
"""The caller's program is wrong, not its rights: INVALID_ARGUMENT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What both ways to a certificate share; `renew` is what the control service needs."""

    ca: CertificateAuthority
    tokens: EnrolmentTokens
    nodes: EnrolledNodes

    async def enrol(self, request: control_pb2.EnrolRequest) -> tuple[NodeId, bytes]:
        """The node's id and certificate chain (PEM). The token is used up only on success.

        Without a token, a node that enrolled before gets a new certificate: its identity is the
        root of its rights, and the old certificate may have ended while it was switched off.

        Raises AuthenticationError (see EnrolmentTokens.admit; node_unknown, bad_proof, bad_csr).
        """
        node_id = check_identity_signature(
            identity_key=request.identity_key,
            message=enrol_message(request.token_id, request.csr_der),
            signature=request.identity_signature,
        )
        chain = self.ca.issue_node(request.csr_der, node_id)
        if not request.token_id and not request.token_secret:
            node = await self.nodes.require(node_id)
            if node.identity_key != request.identity_key:
                raise identity_conflict(node_id)
            await self.nodes.saw(node_id)
            return node_id, chain
        await self.tokens.admit(
            token_id=request.token_id,
            secret=request.token_secret,
            node_id=node_id,
            identity_key=request.identity_key,
            display_name=request.display_name,
        )
        return node_id, chain

    async def renew(self, node_id: NodeId, csr_der: bytes, signature: bytes) -> bytes:
        """A fresh chain (PEM) for an enrolled node, which `node_id`'s certificate vouches for.

        Raises AuthenticationError: node_unknown, node_banned, bad_proof, bad_csr.
        """
        csr_public_key(csr_der)
        node = await self.nodes.require(node_id)
        check_identity_signature(
            identity_key=node.identity_key, message=renew_message(csr_der), signature=signature
        )
        chain = self.ca.issue_node(csr_der, node_id)
        await self.nodes.saw(node_id)
        _log.info("certificate_renewed", node_id=node_id)
        return chain


class EnrolmentService(control_pb2_grpc.EnrolmentServiceServicer):
    """The public door for volunteers. `node_address` is what nodes dial from then on."""

    def __init__(
        self, enrolment: Enrolment, preflight: Preflight, *, ticket_key: bytes, node_address: str
    ) -> None:
        self._enrolment = enrolment
        self._preflight = preflight
        self._ticket_key = ticket_key
        self._node_address = node_address

    async def Enrol(  # noqa: N802
        self,
        request: control_pb2.EnrolRequest,
        context: aio.ServicerContext[control_pb2.EnrolRequest, control_pb2.EnrolResponse],
    ) -> control_pb2.EnrolResponse:
        try:
            node_id, chain = await self._enrolment.enrol(request)
        except PlaitError as error:
            _log.warning("enrolment_refused", token_id=request.token_id[:32], reason=error.code)
            await _abort(context, error)
        _log.info("node_enrolled", node_id=node_id, token_id=request.token_id)
        return control_pb2.EnrolResponse(
            node_id=node_id,
            certificate_chain_pem=chain,
            ca_pem=self._enrolment.ca.certificate_pem,
            ticket_key=self._ticket_key,
            node_address=self._node_address,
            network_id=self._enrolment.ca.network_id,
        )

    async def Preflight(  # noqa: N802
        self, request: control_pb2.PreflightRequest, context: preflight.Context
    ) -> control_pb2.PreflightResponse:
        try:
            return await self._preflight.answer(request, peer_host(context.peer()))
        except PlaitError as error:
            _log.info("preflight_refused", token_id=request.token_id[:32], reason=error.code)
            await _abort(context, error)


def peer_host(peer: str) -> str:
    """Where the far end dialled from; gRPC writes `ipv4:1.2.3.4:5` or `ipv6:[::1]:5`."""
    plain = peer.replace("%5B", "[").replace("%5D", "]")
    return plain.partition(":")[2].rpartition(":")[0]


async def _abort(context: aio.ServicerContext[Q, A], error: PlaitError) -> NoReturn:
    if error.code in _MALFORMED:
        error = InvalidRequestError(error.message, reason=error.code)
    elif isinstance(error, AuthenticationError):
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            error.message,
            trailing_metadata=((REASON_KEY, error.code),),
        )
    await abort_with(context, error)
