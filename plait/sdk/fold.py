"""From the wire's events to deltas and a completion, the same for both clients."""

from dataclasses import replace

from plait.errors import ServiceError
from plait.sdk.results import (
    Alternative,
    Completion,
    Delta,
    Hop,
    ModelEntry,
    ServiceStatus,
    TokenScore,
    ToolCall,
    ToolCallDelta,
    Waiting,
)
from plait.types import FinishReason
from plait.wire import codec
from plait.wire.v1 import gateway_pb2


class Fold:
    """Takes events in order and keeps what they add up to."""

    def __init__(self) -> None:
        self.request_id = ""
        self.model = ""
        self.service_tier = "default"
        self.route: tuple[Hop, ...] = ()
        self.waiting: Waiting | None = None
        self.completion: Completion | None = None
        self.epoch = 0
        self._num_deltas = 0
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._scores: list[TokenScore] = []
        self._calls: list[ToolCall] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    def add(self, event: gateway_pb2.GenerateEvent) -> Delta | None:
        """Take one event; gives the delta it carries, if any. Unknown kinds are passed over."""
        kind = event.WhichOneof("event")
        self._num_deltas += kind in ("delta", "tool_call")
        if kind == "delta":
            return self._add_delta(event.delta)
        if kind == "tool_call":
            return self._add_call(event.tool_call)
        if kind == "accepted":
            self.request_id = event.accepted.request_id
            self.model = event.accepted.model_id
            self.epoch = max(self.epoch, event.accepted.epoch)
            is_flex = event.accepted.service_tier == gateway_pb2.SERVICE_TIER_FLEX
            self.service_tier = "flex" if is_flex else "default"
        elif kind == "queued":
            notice = event.queued
            self.waiting = Waiting(
                position=notice.position,
                reason=notice.reason,
                message=notice.message,
                wait_ms=notice.wait_ms if notice.HasField("wait_ms") else None,
            )
        elif kind == "routed":
            self.waiting = None
            self.epoch = max(self.epoch, event.routed.epoch)
            self.route = tuple(
                Hop(
                    node_id=hop.node_id,
                    display_name=hop.display_name,
                    span=codec.span_from_proto(hop.span),
                )
                for hop in event.routed.hops
            )
        elif kind == "finished":
            self._finish(event.finished)
        return None

    def resume(self) -> gateway_pb2.Resume:
        """What to say to a network that is asked again."""
        return gateway_pb2.Resume(
            epoch=self.epoch, token_ids=self._token_ids, num_deltas=self._num_deltas
        )

    def result(self) -> Completion:
        """The whole answer. Raises ServiceError where the stream ended before its end."""
        if self.completion is None:
            raise ServiceError("the answer broke off before its end", reason="incomplete")
        return self.completion

    def _add_delta(self, message: gateway_pb2.TextDelta) -> Delta:
        delta = Delta(
            text=message.text,
            token_ids=tuple(message.token_ids),
            scores=tuple(_score(entry) for entry in message.logprobs),
        )
        self._texts.append(delta.text)
        self._token_ids.extend(delta.token_ids)
        self._scores.extend(delta.scores)
        return delta

    def _add_call(self, message: gateway_pb2.ToolCallDelta) -> Delta:
        """Put a piece of a call behind its earlier ones. Raises ServiceError for one that has
        none."""
        if message.index > len(self._calls):
            raise ServiceError("a piece of a call has come without its beginning")
        if message.index == len(self._calls):
            self._calls.append(ToolCall(call_id=message.id, name=message.name, arguments=""))
        call = self._calls[message.index]
        arguments = call.arguments + message.arguments_json
        self._calls[message.index] = replace(call, arguments=arguments)
        piece = ToolCallDelta(
            index=message.index,
            call_id=message.id,
            name=message.name,
            arguments=message.arguments_json,
        )
        return Delta(text="", tool_call=piece)

    def _finish(self, message: gateway_pb2.Finished) -> None:
        reason = codec.finish_reason_from_proto(message.reason)
        if reason is None or reason is FinishReason.ERROR:
            return  # the call's status says what failed
        self.completion = Completion(
            text=self.text,
            finish_reason=reason,
            request_id=self.request_id,
            model=self.model,
            service_tier=self.service_tier,
            prompt_tokens=message.prompt_tokens,
            completion_tokens=message.completion_tokens,
            ttft_ms=message.ttft_ms,
            total_ms=message.total_ms,
            num_attempts=message.num_attempts,
            cached_tokens=message.cached_tokens,
            route=self.route,
            token_ids=tuple(self._token_ids),
            scores=tuple(self._scores),
            tool_calls=tuple(self._calls),
        )


def _score(message: gateway_pb2.DeltaLogprob) -> TokenScore:
    return TokenScore(
        token_id=message.token_id,
        text=message.text,
        logprob=message.logprob,
        top=tuple(
            Alternative(token_id=top.token_id, text=top.text, logprob=top.logprob)
            for top in message.top
        ),
    )


def model_entries(models: list[gateway_pb2.ServedModel]) -> list[ModelEntry]:
    """The served models. Raises FrameError for a shape that makes no sense."""
    return [
        ModelEntry(
            model=entry.model_id,
            context_tokens_max=entry.context_tokens_max,
            is_ready=entry.is_ready,
            missing=tuple(codec.span_from_proto(span) for span in entry.missing),
            spec=codec.model_spec_from_proto(entry.spec),
        )
        for entry in models
    ]


def service_status(message: gateway_pb2.GetServiceStatusResponse) -> ServiceStatus:
    """The network's state."""
    return ServiceStatus(
        network_id=message.network_id,
        software_version=message.software_version,
        models=tuple(model_entries(list(message.models))),
        num_nodes_serving=message.num_nodes_serving,
        num_requests_running=message.num_requests_running,
        num_requests_queued=message.num_requests_queued,
    )
