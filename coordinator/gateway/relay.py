"""Between the core, the nodes and the generations: routes go out, tokens come in.

Only the last stage of a request's current epoch may send tokens, and only in order. Everything
else that arrives is late, duplicate or foreign: dropped and counted.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.gateway.generation import Generation
from coordinator.gateway.happenings import GeneratedToken
from coordinator.gateway.links import NodeLink
from coordinator.gateway.posting import Poster
from coordinator.gateway.refusals import error_for
from coordinator.gateway.starting import RouteStarter
from coordinator.ports import Inbox
from plait.clock import Clock
from plait.errors import FrameError, InvalidRequestError
from plait.types import (
    DType,
    FinishReason,
    NodeId,
    Reason,
    RequestId,
    Route,
    TokenLogprob,
)
from plait.wire import codec
from plait.wire.v1 import data_pb2

TOP_LOGPROBS_MAX: Final = 20
GRAMMAR_FAULT: Final = "grammar_failed"
"""A last stage's word for a constraint that cannot be followed."""

ENDED_MAX: Final = 256
"""Ended generations whose length is remembered; views show fewer."""


@dataclass(slots=True)
class OpenedRoute:
    """The current attempt of a request."""

    epoch: int
    route: Route
    is_open: bool = False
    has_token: bool = False
    is_over: bool = False

    @property
    def first_node(self) -> NodeId:
        return self.route[0].node_id

    @property
    def last_node(self) -> NodeId:
        return self.route[-1].node_id


class Relay:
    """Implements RequestActor for the core. One event loop owns it."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        sign: Callable[[bytes], bytes],
        network_id: str,
        clock: Clock,
        new_id: Callable[[], str],
        wire_dtype: DType = DType.FLOAT32,
        ticket_life_ms: int = 600_000,
    ) -> None:
        self._poster = Poster(inbox)
        self._starter = RouteStarter(
            sign=sign,
            network_id=network_id,
            clock=clock,
            new_id=new_id,
            wire_dtype=wire_dtype,
            ticket_life_ms=ticket_life_ms,
        )
        self._links: dict[NodeId, NodeLink] = {}
        self._generations: dict[RequestId, Generation] = {}
        self._routes: dict[RequestId, OpenedRoute] = {}
        self._ended: dict[str, int] = {}
        self.dropped: Counter[str] = Counter()
        """Messages from nodes that were not used, by cause."""

    # For the generator.

    def add(self, generation: Generation) -> None:
        """Know a generation, before its RequestSubmitted is posted."""
        self._generations[generation.request_id] = generation

    def remove(self, request_id: RequestId) -> None:
        """Forget a generation that the core never heard of."""
        self._generations.pop(request_id, None)
        self._routes.pop(request_id, None)

    @property
    def num_generations(self) -> int:
        return len(self._generations)

    def progress(self) -> dict[str, int]:
        """Tokens generated so far, by request; those that ended lately are among them."""
        return self._ended | {
            key: len(each.generated_ids) for key, each in self._generations.items()
        }

    def is_attached(self, node_id: NodeId) -> bool:
        """Whether the node's stream to the gateway is up."""
        return node_id in self._links

    # For the core.

    def perform_request(self, effect: fx.RequestEffect) -> None:
        """Perform one effect; neither awaits nor raises."""
        match effect:
            case fx.OpenRoute():
                self._open(effect)
            case fx.CloseRoute():
                self._close(effect)
            case fx.NotifyQueued():
                generation = self._generations.get(effect.request_id)
                if generation is not None:
                    generation.on_queued(effect.position, effect.reason, effect.wait_ms)
            case fx.EndRequest():
                self._end(effect)
            case _:
                assert_never(effect)

    def _open(self, effect: fx.OpenRoute) -> None:
        request_id = effect.request_id
        generation = self._generations.get(request_id)
        if generation is None or generation.finished is not None:
            self.post(ev.RequestCancelled(request_id=request_id))
            return
        attempt = OpenedRoute(effect.epoch, effect.route)
        self._routes[request_id] = attempt
        for node_id in (attempt.last_node, attempt.first_node):
            if node_id not in self._links:
                self._break(request_id, attempt, node_id, "gateway_link_down", "has no link here")
                return
        start = self._starter.start(effect, generation)
        if not self._links[attempt.first_node].send(data_pb2.GatewayToNode(start=start)):
            self._break(
                request_id, attempt, attempt.first_node, "gateway_link_down", "does not read"
            )

    def _close(self, effect: fx.CloseRoute) -> None:
        attempt = self._routes.get(effect.request_id)
        if attempt is not None and attempt.epoch <= effect.epoch:
            attempt.is_over = True
        close = data_pb2.Close(
            request_id=effect.request_id,
            epoch=effect.epoch,
            reason=codec.finish_reason_to_proto(effect.finish_reason),
        )
        for node_id in dict.fromkeys(stage.node_id for stage in effect.route):
            link = self._links.get(node_id)
            if link is not None:
                link.send(data_pb2.GatewayToNode(close=close))

    def _end(self, effect: fx.EndRequest) -> None:
        self._routes.pop(effect.request_id, None)
        generation = self._generations.pop(effect.request_id, None)
        if generation is None:
            return
        self._ended[effect.request_id] = len(generation.generated_ids)
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        if generation.finished is not None:
            return
        is_error = effect.finish_reason is FinishReason.ERROR
        generation.on_ended(effect.finish_reason, error_for(effect.reason) if is_error else None)

    # For the nodes' streams.

    def attach(self, node_id: NodeId, incarnation: int) -> NodeLink:
        """Make this stream the node's link; an older one is closed, and its routes break."""
        old = self._links.pop(node_id, None)
        if old is not None:
            old.close("the node opened a newer stream")
            self._lose(old)
        link = NodeLink(node_id, incarnation)
        self._links[node_id] = link
        self.post(ev.GatewayLinkChanged(node_id=node_id, incarnation=incarnation, is_up=True))
        return link

    def detach(self, link: NodeLink) -> None:
        """The stream ended. Routes that begin or end at the node break."""
        link.close("the stream ended")
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
            self._lose(link)

    def _lose(self, link: NodeLink) -> None:
        self.post(
            ev.GatewayLinkChanged(node_id=link.node_id, incarnation=link.incarnation, is_up=False)
        )
        for request_id, attempt in list(self._routes.items()):
            if link.node_id in (attempt.first_node, attempt.last_node):
                self._break(
                    request_id, attempt, link.node_id, "gateway_link_down", "lost its link here"
                )

    def receive(self, node_id: NodeId, message: data_pb2.NodeToGateway) -> None:
        """Take one message from an attached node. Raises FrameError for an empty one."""
        body = message.WhichOneof("body")
        if body == "opened":
            self._on_opened(node_id, message.opened)
        elif body == "token":
            self._on_token(node_id, message.token)
        elif body == "broken":
            self._on_broken(node_id, message.broken)
        elif body == "attach":
            self.dropped["second_attach"] += 1
        else:
            raise FrameError("a message to the gateway has no body")

    def _on_opened(self, node_id: NodeId, message: data_pb2.Opened) -> None:
        attempt = self._current(node_id, message.request_id, message.epoch)
        if attempt is None:
            return
        if attempt.is_open:
            self.dropped["duplicate_opened"] += 1
            return
        attempt.is_open = True
        request_id = RequestId(message.request_id)
        self._generations[request_id].on_routed(attempt.epoch, attempt.route)
        self.post(ev.RouteOpened(request_id=request_id, epoch=attempt.epoch))

    def _on_token(self, node_id: NodeId, message: data_pb2.SampledToken) -> None:
        attempt = self._current(node_id, message.request_id, message.epoch)
        if attempt is None:
            return
        request_id = RequestId(message.request_id)
        generation = self._generations[request_id]
        if generation.finished is not None:
            self.dropped["late"] += 1
            return
        expected = len(generation.prompt_ids) + len(generation.generated_ids)
        if not attempt.is_open:
            self.dropped["token_before_opened"] += 1
            return
        if message.position < expected:
            self.dropped["duplicate_token"] += 1
            return
        if message.position > expected:
            self.dropped["token_gap"] += 1
            what = f"sent position {message.position} where {expected} is next"
            self._break(request_id, attempt, node_id, "token_gap", what)
            return
        try:
            token = self._read_token(message, generation)
            finish_reason = codec.finish_reason_from_proto(message.finish_reason)
        except FrameError as error:
            self.dropped["bad_token"] += 1
            self._break(request_id, attempt, node_id, "frame_invalid", f"sent {error.message}")
            return
        if finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            finish_reason = None  # the others come as `broken`, or from us
        self._take(request_id, attempt, generation, token, finish_reason)

    def _take(
        self,
        request_id: RequestId,
        attempt: OpenedRoute,
        generation: Generation,
        token: GeneratedToken,
        finish_reason: FinishReason | None,
    ) -> None:
        ended = generation.on_token(token, finish_reason)
        if not attempt.has_token:
            attempt.has_token = True
            self.post(ev.FirstTokenSent(request_id=request_id, epoch=attempt.epoch))
        if ended is not None:
            attempt.is_over = True
            self.post(
                ev.LastTokenSent(
                    request_id=request_id,
                    epoch=attempt.epoch,
                    finish_reason=ended,
                    num_generated=len(generation.generated_ids),
                )
            )

    def _read_token(self, message: data_pb2.SampledToken, generation: Generation) -> GeneratedToken:
        vocab_size = generation.vocab_size
        top = tuple(
            TokenLogprob(entry.token_id, entry.logprob)
            for entry in message.top_logprobs[:TOP_LOGPROBS_MAX]
        )
        logprob = message.logprob if message.HasField("logprob") else None
        values = [entry.logprob for entry in top] + ([] if logprob is None else [logprob])
        if any(math.isnan(value) for value in values):
            raise FrameError("a log probability that is not a number")
        for token_id in (message.token_id, *(entry.token_id for entry in top)):
            if token_id >= vocab_size:
                raise FrameError(f"token {token_id} of a vocabulary of {vocab_size}")
        return GeneratedToken(
            token_id=message.token_id,
            logprob=logprob,
            top_logprobs=top,
            is_stop=message.token_id in generation.stop_token_ids,
        )

    def _on_broken(self, node_id: NodeId, message: data_pb2.Broken) -> None:
        request_id = RequestId(message.request_id)
        attempt = self._routes.get(request_id)
        if attempt is None or attempt.is_over or attempt.epoch != message.epoch:
            self.dropped["late"] += 1
            return
        members = {stage.node_id for stage in attempt.route}
        if node_id not in members:
            self.dropped["wrong_sender"] += 1
            return
        blamed = NodeId(message.node_id) if message.node_id in members else None
        attempt.is_over = True
        if self._is_own_fault(request_id, attempt, node_id, message):
            return
        self.post(
            ev.RouteBroke(
                request_id=request_id,
                epoch=attempt.epoch,
                node_id=blamed,
                reason=codec.reason_from_proto(message.status),
                num_generated=self._num_generated(request_id),
            )
        )

    def _is_own_fault(
        self, request_id: RequestId, attempt: OpenedRoute, node_id: NodeId, message: data_pb2.Broken
    ) -> bool:
        """Whether the request's constraint failed, which no other chain would mend and no node is
        to be blamed for; it has ended then."""
        generation = self._generations.get(request_id)
        if generation is None or generation.sampling.constraint is None:
            return False
        if message.status.reason != GRAMMAR_FAULT or node_id != attempt.last_node:
            return False
        error = InvalidRequestError(
            f"the answer cannot be held to what was asked for: {message.status.message[:200]}",
            param="response_format",
            reason=GRAMMAR_FAULT,
        )
        generation.on_ended(FinishReason.ERROR, error)
        num_generated = len(generation.generated_ids)
        self.post(ev.RequestCancelled(request_id=request_id, num_generated=num_generated))
        return True

    def _current(self, node_id: NodeId, request_id: str, epoch: int) -> OpenedRoute | None:
        """The attempt that `node_id` may speak for as its last stage, or None (counted)."""
        attempt = self._routes.get(RequestId(request_id))
        if attempt is None or attempt.is_over or attempt.epoch != epoch:
            self.dropped["late"] += 1
            return None
        if node_id != attempt.last_node:
            self.dropped["wrong_sender"] += 1
            return None
        return attempt

    # Helpers.

    def _break(
        self, request_id: RequestId, attempt: OpenedRoute, node_id: NodeId, code: str, what: str
    ) -> None:
        if attempt.is_over:
            return
        attempt.is_over = True
        self.post(
            ev.RouteBroke(
                request_id=request_id,
                epoch=attempt.epoch,
                node_id=node_id,
                reason=Reason(code=code, message=f"node {node_id} {what}"),
                num_generated=self._num_generated(request_id),
            )
        )

    def _num_generated(self, request_id: RequestId) -> int:
        generation = self._generations.get(request_id)
        return 0 if generation is None else len(generation.generated_ids)

    def post(self, event: ev.Event) -> None:
        """Hand an event to the core; neither blocks nor raises."""
        self._poster.post(event)
