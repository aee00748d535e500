"""Between the core, the nodes and the generations: routes go out, tokens come in.

Only the last stage of a request's current epoch may send tokens, in order. All else that arrives is
late, duplicate or foreign: dropped and counted.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, assert_never

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.gateway.attempts import OpenedRoute
from coordinator.gateway.found import FoundRoutes
from coordinator.gateway.generation import Generation
from coordinator.gateway.guess_book import GuessBook
from coordinator.gateway.happenings import GeneratedToken
from coordinator.gateway.links import NodeLink
from coordinator.gateway.posting import Poster
from coordinator.gateway.prompt_book import PromptBook
from coordinator.gateway.refusals import error_for
from coordinator.gateway.returning import Returning
from coordinator.gateway.sampled import read_token
from coordinator.gateway.starting import RouteStarter
from coordinator.ports import Inbox
from plait.clock import Clock
from plait.errors import FrameError, InvalidRequestError
from plait.types import DType, FinishReason, NodeId, Reason, RequestId
from plait.wire import codec
from plait.wire.v1 import data_pb2

GRAMMAR_FAULT: Final = "grammar_failed"
"""A last stage's word for a constraint that cannot be followed."""

ENDED_MAX: Final = 256  # ended generations whose length is remembered; views show fewer


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
        self._is_stopping = False
        self._links: dict[NodeId, NodeLink] = {}
        self._generations: dict[RequestId, Generation] = {}
        self._routes: dict[RequestId, OpenedRoute] = {}
        self._ended: dict[str, int] = {}
        self._found = FoundRoutes(sign=sign, network_id=network_id, clock=clock)
        self._returning = Returning(self, self._found, sign)
        self.guesses, self.prompts = GuessBook(), PromptBook()
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

    def submitted(self, generation: Generation) -> None:
        """The core has been told of it: go on with the route that nodes may still run for it."""
        self._returning.submitted(generation)

    def stop(self) -> None:
        """From now on nothing is ordered or told: what nodes run goes on until we are back."""
        self._is_stopping = True

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

    # For routes that are found again.

    def generation(self, request_id: RequestId) -> Generation | None:
        """What is generated for a request, while it runs."""
        return self._generations.get(request_id)

    def attempt(self, request_id: RequestId) -> OpenedRoute | None:
        """The request's latest chain."""
        return self._routes.get(request_id)

    def has_ended(self, request_id: RequestId) -> bool:
        """Whether a request ended here lately, and is not asked again."""
        generation = self._generations.get(request_id)
        return request_id in self._ended if generation is None else bool(generation.finished)

    def go_on(self, request_id: RequestId, attempt: OpenedRoute) -> None:
        """Take tokens of this chain from now on."""
        self._routes[request_id] = attempt

    def drop(self, cause: str) -> None:
        """Count a message that was not used."""
        self.dropped[cause] += 1

    def close_stage(
        self,
        node_id: NodeId,
        request_id: RequestId,
        epoch: int,
        reason: FinishReason = FinishReason.CANCELLED,
    ) -> None:
        """Have a stage let go of a request, if it can be told."""
        link = self._links.get(node_id)
        if link is not None:
            word = codec.finish_reason_to_proto(reason)
            close = data_pb2.Close(request_id=request_id, epoch=epoch, reason=word)
            link.send(data_pb2.GatewayToNode(close=close))

    # For the core.

    def perform_request(self, effect: fx.RequestEffect) -> None:
        """Perform one effect; neither awaits nor raises."""
        if self._is_stopping:
            return
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
                self.break_route(
                    request_id, attempt, node_id, "gateway_link_down", "has no link here"
                )
                return
        start = self._starter.start(effect, generation)
        if not self._links[attempt.first_node].send(data_pb2.GatewayToNode(start=start)):
            self.break_route(
                request_id, attempt, attempt.first_node, "gateway_link_down", "does not read"
            )

    def _close(self, effect: fx.CloseRoute) -> None:
        attempt = self._routes.get(effect.request_id)
        if attempt is not None and attempt.epoch <= effect.epoch:
            attempt.is_over = True
        for node_id in dict.fromkeys(stage.node_id for stage in effect.route):
            self.close_stage(node_id, effect.request_id, effect.epoch, effect.finish_reason)

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
                self.break_route(
                    request_id, attempt, link.node_id, "gateway_link_down", "lost its link here"
                )

    def receive(self, node_id: NodeId, message: data_pb2.NodeToGateway) -> None:
        """Take one message from an attached node. Raises FrameError for an empty one."""
        body = message.WhichOneof("body")
        if body == "opened":
            self._on_opened(node_id, message.opened)
        elif body == "token":
            if not (len(self._found) and self._found.heard(node_id, message.token)):
                self.take_token(node_id, message.token)
        elif body == "kept":
            self._returning.heard_of(node_id, message.kept)
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
        cached_tokens = message.cached_tokens
        self._generations[request_id].on_routed(attempt.epoch, attempt.route, cached_tokens)
        self.post(ev.RouteOpened(request_id=request_id, epoch=attempt.epoch))

    def take_token(self, node_id: NodeId, message: data_pb2.SampledToken) -> None:
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
            self.break_route(request_id, attempt, node_id, "token_gap", what)
            return
        try:
            token = read_token(message, generation)
            finish_reason = codec.finish_reason_from_proto(message.finish_reason)
        except FrameError as error:
            self.dropped["bad_token"] += 1
            self.break_route(request_id, attempt, node_id, "frame_invalid", f"sent {error.message}")
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
        self.prompts.note(generation)
        self.guesses.note(request_id, generation.model_id, token)
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

    def _on_broken(self, node_id: NodeId, message: data_pb2.Broken) -> None:
        request_id = RequestId(message.request_id)
        attempt = self._routes.get(request_id)
        if attempt is None or attempt.is_over or attempt.epoch != message.epoch:
            self._found.broke(request_id, message.epoch)
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
        count = len(generation.generated_ids)
        self.post(ev.RequestCancelled(request_id=request_id, num_generated=count))
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

    def break_route(
        self, request_id: RequestId, attempt: OpenedRoute, node_id: NodeId, code: str, what: str
    ) -> None:
        """The chain cannot go on, for what `node_id` did."""
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
        if self._is_stopping:
            return
        self._poster.post(event)
