"""Routes that nodes still run for requests that this gateway does not know: it has restarted.

They wait here for the client to come back, with every token that arrives meanwhile. A route is
believed for its ticket, which only this network's coordinator can have signed.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from plait.clock import Clock
from plait.errors import TicketError
from plait.types import NodeId, RequestId, Route, RouteTicket, Stage
from plait.wire.tickets import decode_payload
from plait.wire.v1 import data_pb2

FOUND_S: Final = 60.0
"""How long a client has to come back for its request."""

ROUTES_MAX: Final = 2_048
TOKENS_MAX: Final = 1_048_576


def client_tag(sign: Callable[[bytes], bytes], fingerprint: bytes) -> bytes:
    """Whose request a ticket is for: the same after a restart, and nobody else can compute it."""
    return hashlib.sha256(sign(b"plait-client-v1" + fingerprint)).digest()[:16]


@dataclass(slots=True)
class FoundRoute:
    """A route that runs, or ended, without us. `tokens` begin at `position`, without a gap."""

    ticket: RouteTicket
    position: int
    is_running: bool
    cached_tokens: int = 0
    tokens: list[data_pb2.SampledToken] = field(default_factory=list)

    @property
    def route(self) -> Route:
        return tuple(Stage(s.node_id, s.incarnation, s.span) for s in self.ticket.stages)

    @property
    def last_node(self) -> NodeId:
        return self.ticket.stages[-1].node_id

    def add(self, token: data_pb2.SampledToken) -> bool:
        """Take the next token; False where it is not the next one."""
        if token.position != self.position + len(self.tokens):
            return False
        self.tokens.append(token)
        return True


class FoundRoutes:
    """By request, the newest epoch of each. Bounded: what is over the bounds is not kept, and its
    client starts the route anew."""

    def __init__(
        self,
        *,
        sign: Callable[[bytes], bytes],
        network_id: str,
        clock: Clock,
        routes_max: int = ROUTES_MAX,
        tokens_max: int = TOKENS_MAX,
    ) -> None:
        self._sign = sign
        self._network_id = network_id
        self._clock = clock
        self._routes_max = routes_max
        self._tokens_max = tokens_max
        self._num_tokens = 0
        self._found: dict[RequestId, FoundRoute] = {}

    def __len__(self) -> int:
        return len(self._found)

    def read(self, message: data_pb2.KeptRoute) -> RouteTicket | None:
        """The ticket, if we signed it and it is still good; else None."""
        payload = message.ticket.payload
        if self._sign(payload) != message.ticket.signature:  # Ed25519 signs the same way each time
            return None
        try:
            ticket = decode_payload(payload)
        except TicketError:
            return None
        if ticket.network_id != self._network_id or not ticket.stages:
            return None
        return ticket if ticket.expires_unix_ms > self._clock.unix_ms() else None

    def keep(self, ticket: RouteTicket, message: data_pb2.KeptRoute) -> bool:
        """Keep a route, or a further piece of it; whether it is new here."""
        found = self._found.get(ticket.request_id)
        is_new = found is None or found.ticket.epoch < ticket.epoch
        if found is not None and is_new:
            self.take(ticket.request_id)
        if found is None or is_new:
            if len(self._found) >= self._routes_max:
                return False
            cached_tokens = message.cached_tokens
            found = FoundRoute(ticket, message.position, message.is_running, cached_tokens)
            self._found[ticket.request_id] = found
        if found.ticket.epoch == ticket.epoch:
            found.is_running = message.is_running
            for token in message.tokens:
                self._add(found, token)
        return is_new

    def heard(self, node_id: NodeId, token: data_pb2.SampledToken) -> bool:
        """Whether `token` belongs to a route that waits here; it is kept then."""
        found = self._found.get(RequestId(token.request_id))
        if found is None or found.last_node != node_id or found.ticket.epoch != token.epoch:
            return False
        self._add(found, token)
        return True

    def broke(self, request_id: RequestId, epoch: int) -> None:
        """The route is over."""
        found = self._found.get(request_id)
        if found is not None and found.ticket.epoch == epoch:
            found.is_running = False

    def take(self, request_id: RequestId, epoch: int | None = None) -> FoundRoute | None:
        """Hand a route out for good (of this epoch, where one is given); None: none waits."""
        found = self._found.get(request_id)
        if found is None or epoch not in (None, found.ticket.epoch):
            return None
        del self._found[request_id]
        self._num_tokens -= len(found.tokens)
        return found

    def _add(self, found: FoundRoute, token: data_pb2.SampledToken) -> None:
        if self._num_tokens < self._tokens_max and found.add(token):
            self._num_tokens += 1
