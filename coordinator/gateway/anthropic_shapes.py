"""Anthropic's message objects, for answers and for the events of a stream."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.gateway.dialect import ChoiceState, Envelope, Event, Json
from coordinator.gateway.happenings import CallDelta, Delta, Finished
from coordinator.gateway.http_errors import status_of
from coordinator.gateway.tool_calls import is_object
from plait.errors import PlaitError
from plait.types import FinishReason

_STOP_REASONS: Final = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(error: PlaitError) -> Json:
    """`{"type": "error", "error": {"type", "message"}}`."""
    kind = _ERRORS.get(status_of(error), "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class AnthropicDialect:
    """Content blocks, each opened, filled and closed."""

    last_words = b""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._num_blocks = 0
        self._open: int | None = None
        """Number of the call whose block is open, -1 for text; None: no block is."""

    def begun(self, choice: ChoiceState) -> list[Event]:
        usage = self._usage(choice.cached_tokens, num_generated=0)
        message = self._message([], None, usage)
        return [_event({"type": "message_start", "message": message})]

    def piece(self, choice: ChoiceState, happening: Delta | CallDelta) -> list[Event]:
        if isinstance(happening, CallDelta):
            events = self._opened(happening.index, _tool_use(happening, {}))
            delta = {"type": "input_json_delta", "partial_json": happening.arguments}
            return [*events, self._delta(delta)]
        if not happening.text:
            return []
        events = self._opened(-1, {"type": "text", "text": ""})
        return [*events, self._delta({"type": "text_delta", "text": happening.text})]

    def ended(self, choice: ChoiceState, finished: Finished) -> list[Event]:
        change = {
            "type": "message_delta",
            "delta": _stop(finished),
            "usage": self._usage(finished.cached_tokens, finished.completion_tokens),
        }
        return [*self._closed_block(), _event(change), _event({"type": "message_stop"})]

    def closed(self, finished: Sequence[Finished]) -> list[Event]:
        return []

    def failed(self, error: PlaitError) -> Event:
        return _event(anthropic_error(error))

    def answer(self, choices: Sequence[tuple[ChoiceState, Finished]]) -> Json:
        ((choice, finished),) = choices
        blocks: list[Json] = [{"type": "text", "text": choice.text}] if choice.text else []
        for call in choice.calls:
            taken = _input(call.arguments)
            blocks.append(_tool_use(call, taken))
        usage = self._usage(finished.cached_tokens, finished.completion_tokens)
        return self._message(blocks, finished, usage)

    def _usage(self, cached_tokens: int, num_generated: int) -> Json:
        """Anthropic's `input_tokens` are those that were run. Nothing is written to a cache that
        had to be asked for."""
        return {
            "input_tokens": self._envelope.prompt_tokens - cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached_tokens,
            "output_tokens": num_generated,
        }

    def _message(self, blocks: Sequence[Json], finished: Finished | None, usage: Json) -> Json:
        return {
            "id": self._envelope.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model_id,
            "content": list(blocks),
            **_stop(finished),
            "usage": {**usage, "service_tier": "standard"},
        }

    def _opened(self, which: int, block: Json) -> list[Event]:
        """An open block for `which`: what was open before is closed."""
        if self._open == which:
            return []
        events = self._closed_block()
        self._open = which
        start = {"type": "content_block_start", "index": self._num_blocks, "content_block": block}
        return [*events, _event(start)]

    def _closed_block(self) -> list[Event]:
        if self._open is None:
            return []
        self._open = None
        self._num_blocks += 1
        return [_event({"type": "content_block_stop", "index": self._num_blocks - 1})]

    def _delta(self, delta: Mapping[str, object]) -> Event:
        return _event({"type": "content_block_delta", "index": self._num_blocks, "delta": delta})


def _tool_use(call: CallDelta, taken: Json) -> Json:
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": taken}


def _input(arguments: str) -> Json:
    """A call's arguments; where the token limit cut them, their text under a key that says so."""
    if not arguments:
        return {}
    if not is_object(arguments):
        return {"INVALID_JSON": arguments}
    taken: Json = json.loads(arguments)
    return taken


def _stop(finished: Finished | None) -> Json:
    if finished is None:
        return {"stop_reason": None, "stop_sequence": None}
    if finished.stop and finished.reason is FinishReason.STOP:
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop}
    return {"stop_reason": _STOP_REASONS.get(finished.reason), "stop_sequence": None}


def _event(content: Mapping[str, object]) -> Event:
    return Event(dict(content), str(content["type"]))
