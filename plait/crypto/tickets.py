"""Route tickets: the coordinator signs, every stage checks once, before it reserves anything.

The wire form is plait.wire's: here a payload is bytes, and `decode` makes a RouteTicket of it.
"""

import heapq
from collections.abc import Callable
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from plait.clock import Clock
from plait.errors import OverloadedError, TicketError
from plait.types import ModelId, NodeId, RouteTicket

TICKET_CONTEXT: Final = b"plait-ticket-v1"
SKEW_MS: Final = 60_000
"""Clocks of a node and its coordinator may differ by this much."""

REMEMBERED_MAX: Final = 65_536
"""Tickets remembered at once; above, new ones are refused rather than old ones forgotten."""

PAYLOAD_BYTES_MAX: Final = 64 * 1024
TICKET_ID_CHARS_MAX: Final = 64


class SignedBytes(Protocol):
    """A payload and its signature, e.g. the Ticket message."""

    @property
    def payload(self) -> bytes: ...

    @property
    def signature(self) -> bytes: ...


class TicketSigner:
    """The coordinator's half."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_bytes = key.public_key().public_bytes_raw()

    def sign(self, payload: bytes) -> bytes:
        """64 bytes: Ed25519 over the context and the payload."""
        return self._key.sign(TICKET_CONTEXT + payload)


class TicketVerifier:
    """A node's half. Remembers what it accepted until it expires; bounded by REMEMBERED_MAX.

    Mutated by `verify` and `accept_earlier`. `decode` raises TicketError for a payload that it
    cannot read.
    """

    def __init__(
        self,
        *,
        public_key: bytes,
        network_id: str,
        node_id: NodeId,
        clock: Clock,
        decode: Callable[[bytes], RouteTicket],
        remembered_max: int = REMEMBERED_MAX,
    ) -> None:
        self._public_key = Ed25519PublicKey.from_public_bytes(public_key)
        self._network_id = network_id
        self._node_id = node_id
        self._clock = clock
        self._decode = decode
        self._seen: set[tuple[str, int]] = set()
        self._expiries: list[tuple[int, tuple[str, int]]] = []
        self._forgotten_expiry_ms = 0
        self._remembered_max = remembered_max

    @property
    def num_remembered(self) -> int:
        return len(self._seen)

    def verify(
        self,
        ticket: SignedBytes,
        *,
        stage_index: int,
        held_model: ModelId | None,
        sender_node_id: NodeId | None,
        incarnation: int,
    ) -> RouteTicket:
        """Accept a ticket for a stage of this node, once.

        Args:
            stage_index: the stage that the sender wants opened here.
            held_model: the model of the held span.
            sender_node_id: the neighbour whose certificate the link carries; None: the gateway.
            incarnation: this process's.

        Raises:
            TicketError: ticket_malformed, ticket_forged, ticket_wrong_network, ticket_expired,
                ticket_wrong_hop or ticket_replayed, in this order of checking.
            OverloadedError: more open tickets than can be remembered.
        """
        content = self._authentic(ticket)
        if content.network_id != self._network_id:
            raise _refused("ticket_wrong_network", f"is of network {content.network_id!r}")
        now_ms = self._clock.unix_ms()
        check_dates(content, now_ms)
        if content.expires_unix_ms <= self._forgotten_expiry_ms:
            raise _refused("ticket_expired", "expired before this node's clock was set back")
        check_hop(
            content,
            stage_index=stage_index,
            node_id=self._node_id,
            held_model=held_model,
            sender_node_id=sender_node_id,
            incarnation=incarnation,
        )
        self._remember(content, stage_index, now_ms)
        return content

    def accept_earlier(self) -> None:
        """The coordinator's own clock was ahead, and is right now: what was forgotten meanwhile
        says nothing of tickets that are issued from here on."""
        self._forgotten_expiry_ms = 0

    def _authentic(self, ticket: SignedBytes) -> RouteTicket:
        payload, signature = ticket.payload, ticket.signature
        if not payload or len(payload) > PAYLOAD_BYTES_MAX:
            raise _refused("ticket_malformed", f"has {len(payload)} bytes")
        try:
            self._public_key.verify(signature, TICKET_CONTEXT + payload)
        except (InvalidSignature, ValueError):
            raise _refused("ticket_forged", "was not signed by this network") from None
        content = self._decode(payload)
        check_shape(content)
        return content

    def _remember(self, ticket: RouteTicket, stage_index: int, now_ms: int) -> None:
        # A stage belongs to one node, so once per stage is once per node, also for a node that
        # has two stages of a route.
        self._forget(now_ms)
        key = (ticket.ticket_id, stage_index)
        if key in self._seen:
            raise _refused("ticket_replayed", "was used on this stage before")
        if len(self._seen) >= self._remembered_max:
            raise OverloadedError("this node holds as many open tickets as it can remember")
        self._seen.add(key)
        heapq.heappush(self._expiries, (ticket.expires_unix_ms, key))

    def _forget(self, now_ms: int) -> None:
        while self._expiries and self._expiries[0][0] + SKEW_MS < now_ms:
            expiry_ms, key = heapq.heappop(self._expiries)
            self._seen.discard(key)
            self._forgotten_expiry_ms = expiry_ms


def check_shape(ticket: RouteTicket) -> None:
    """Raises TicketError(reason="ticket_malformed") for fields that no coordinator fills so."""
    if not 0 < len(ticket.ticket_id) <= TICKET_ID_CHARS_MAX or not ticket.request_id:
        raise _refused("ticket_malformed", "names no ticket or no request")
    if not ticket.stages or ticket.epoch < 1 or ticket.kv_tokens < 1:
        raise _refused("ticket_malformed", "has no stages, epoch or KV")
    if ticket.expires_unix_ms <= ticket.issued_unix_ms:
        raise _refused("ticket_malformed", "expires before it was issued")
    at = 0
    for stage in ticket.stages:
        if stage.span.start != at:
            raise _refused("ticket_malformed", f"has a gap or an overlap at layer {at}")
        at = stage.span.end


def check_dates(ticket: RouteTicket, now_ms: int) -> None:
    """Raises TicketError(reason="ticket_expired") outside of its life and SKEW_MS around it."""
    if now_ms > ticket.expires_unix_ms + SKEW_MS:
        late_s = (now_ms - ticket.expires_unix_ms) // 1000
        raise _refused("ticket_expired", f"expired {late_s} s ago by this node's clock")
    if now_ms < ticket.issued_unix_ms - SKEW_MS:
        early_s = (ticket.issued_unix_ms - now_ms) // 1000
        raise _refused(
            "ticket_expired", f"begins in {early_s} s by this node's clock: set the clock"
        )


def check_hop(
    ticket: RouteTicket,
    *,
    stage_index: int,
    node_id: NodeId,
    held_model: ModelId | None,
    sender_node_id: NodeId | None,
    incarnation: int,
) -> None:
    """Raises TicketError(reason="ticket_wrong_hop") unless this node is meant, by this sender."""
    if not 0 <= stage_index < len(ticket.stages):
        raise _refused("ticket_wrong_hop", f"has no stage {stage_index}")
    stage = ticket.stages[stage_index]
    if stage.node_id != node_id:
        raise _refused("ticket_wrong_hop", f"names {stage.node_id} for stage {stage_index}")
    if stage.incarnation != incarnation:
        raise _refused("ticket_wrong_hop", "is for an earlier start of this node")
    if held_model is None or ticket.model_id != held_model:
        raise _refused("ticket_wrong_hop", f"is for {ticket.model_id!r}, which is not held here")
    expected = ticket.stages[stage_index - 1].node_id if stage_index > 0 else None
    if sender_node_id != expected:
        raise _refused(
            "ticket_wrong_hop",
            f"must come from {expected or 'the gateway'}, came from "
            f"{sender_node_id or 'the gateway'}",
        )


def _refused(reason: str, what: str) -> TicketError:
    return TicketError(f"the route ticket {what}", reason=reason)
