"""Going on with routes that nodes still run, when their clients come back after a restart.

Node and client come in either order: whichever is second brings the two together.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from coordinator.core import events as ev
from coordinator.gateway.attempts import OpenedRoute
from coordinator.gateway.found import FOUND_S, FoundRoutes, client_tag
from coordinator.gateway.generation import Generation
from plait.types import NodeId, RequestId, RouteTicket
from plait.wire.v1 import data_pb2


class Tokens(Protocol):
    """What is asked of the relay."""

    def generation(self, request_id: RequestId) -> Generation | None: ...

    def attempt(self, request_id: RequestId) -> OpenedRoute | None: ...

    def has_ended(self, request_id: RequestId) -> bool: ...

    def go_on(self, request_id: RequestId, attempt: OpenedRoute) -> None: ...

    def close_stage(self, node_id: NodeId, request_id: RequestId, epoch: int) -> None: ...

    def take_token(self, node_id: NodeId, message: data_pb2.SampledToken) -> None: ...

    def break_route(
        self, request_id: RequestId, attempt: OpenedRoute, node_id: NodeId, code: str, what: str
    ) -> None: ...

    def drop(self, cause: str) -> None: ...

    def post(self, event: ev.Event) -> None: ...


class Returning:
    """Matches what nodes still hold with what clients ask for again."""

    def __init__(self, relay: Tokens, found: FoundRoutes, sign: Callable[[bytes], bytes]) -> None:
        self._relay = relay
        self._found = found
        self._sign = sign

    def heard_of(self, node_id: NodeId, message: data_pb2.KeptRoute) -> None:
        """A stage says what it still holds: known, late, or of a request that may come back."""
        relay, ticket = self._relay, self._found.read(message)
        if ticket is None or all(stage.node_id != node_id for stage in ticket.stages):
            relay.drop("bad_ticket")
            return
        request_id = ticket.request_id
        attempt = relay.attempt(request_id)
        is_last = node_id == ticket.stages[-1].node_id
        if attempt is not None and attempt.epoch == ticket.epoch and not attempt.is_over:
            self._further_piece(node_id, attempt, message, request_id, is_last=is_last)
            return
        is_late = attempt is not None and attempt.epoch >= ticket.epoch
        if is_late or relay.has_ended(request_id):
            relay.close_stage(node_id, request_id, ticket.epoch)
        elif is_last and self._found.keep(ticket, message):
            generation = relay.generation(request_id)
            if generation is not None:
                self.submitted(generation)
            else:
                loop = asyncio.get_running_loop()
                loop.call_later(FOUND_S, self._abandon, request_id, ticket.epoch)

    def submitted(self, generation: Generation) -> None:
        """A request that the core has just been told of."""
        found = self._found.take(generation.request_id)
        if found is None:
            return
        request_id, ticket = generation.request_id, found.ticket
        num_known = len(generation.prompt_ids) + len(generation.generated_ids)
        is_its_own = ticket.client_tag == client_tag(self._sign, generation.fingerprint)
        is_usable = is_its_own and found.position <= num_known
        attempt = OpenedRoute(ticket.epoch, found.route, is_open=True, has_token=True)
        attempt.is_over = not is_usable
        self._relay.go_on(request_id, attempt)
        self._relay.post(
            ev.RouteFound(
                request_id=request_id,
                epoch=ticket.epoch,
                route=found.route,
                kv_tokens=ticket.kv_tokens,
                is_running=is_usable and found.is_running,
            )
        )
        if not is_usable:
            self._free(ticket)
            return
        generation.on_routed(ticket.epoch, found.route, found.cached_tokens)
        for token in found.tokens:
            self._relay.take_token(found.last_node, token)
        attempt.is_over = attempt.is_over or not found.is_running

    def _further_piece(
        self,
        node_id: NodeId,
        attempt: OpenedRoute,
        message: data_pb2.KeptRoute,
        request_id: RequestId,
        *,
        is_last: bool,
    ) -> None:
        """More tokens of a route that goes on already."""
        if not is_last:
            return
        for token in message.tokens:
            self._relay.take_token(node_id, token)
        if not message.is_running:
            what = "ended the route meanwhile"
            self._relay.break_route(request_id, attempt, node_id, "route_over", what)

    def _abandon(self, request_id: RequestId, epoch: int) -> None:
        """Nobody came back for a route."""
        found = self._found.take(request_id, epoch)
        if found is not None:
            self._free(found.ticket)

    def _free(self, ticket: RouteTicket) -> None:
        for stage in ticket.stages:
            self._relay.close_stage(stage.node_id, ticket.request_id, ticket.epoch)
