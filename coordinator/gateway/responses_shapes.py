"""OpenAI's response objects of /v1/responses, for answers and for the events of a stream."""

from collections.abc import Sequence
from typing import Final

from coordinator.gateway.dialect import ChoiceState, Envelope, Event, Json
from coordinator.gateway.happenings import CallDelta, Delta, Finished
from coordinator.gateway.http_errors import error_object
from coordinator.gateway.openai_shapes import logprobs_of
from plait.errors import PlaitError
from plait.types import FinishReason

TEXT: Final = -1
"""Stands for the message among an answer's items; calls are known by their numbers."""


class ResponsesDialect:
    """Output items, each added, filled and done; events are numbered."""

    last_words = b""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._num_events = 0
        self._items: list[int] = []
        """What the answer is made of so far: numbers of calls, or TEXT."""

        self._is_open = False
        self._last: tuple[ChoiceState, Finished] | None = None

    def begun(self, choice: ChoiceState) -> list[Event]:
        response = self._response("in_progress", [])
        return [
            self._event("response.created", {"response": response}),
            self._event("response.in_progress", {"response": response}),
        ]

    def piece(self, choice: ChoiceState, happening: Delta | CallDelta) -> list[Event]:
        if isinstance(happening, CallDelta):
            events = self._opened(choice, happening.index)
            about = self._about(choice)
            kind = "response.function_call_arguments.delta"
            return [*events, self._event(kind, {**about, "delta": happening.arguments})]
        if not happening.text and self._envelope.top_logprobs is None:
            return []
        events = self._opened(choice, TEXT)
        logprobs = _logprobs(self._envelope, choice, happening)
        about = {**self._about(choice), "content_index": 0, "delta": happening.text}
        return [*events, self._event("response.output_text.delta", {**about, "logprobs": logprobs})]

    def ended(self, choice: ChoiceState, finished: Finished) -> list[Event]:
        self._last = choice, finished
        return self._closed_item(choice, finished)

    def closed(self, finished: Sequence[Finished]) -> list[Event]:
        if self._last is None:
            return []
        response = self._whole(*self._last)
        return [self._event(f"response.{response['status']}", {"response": response})]

    def failed(self, error: PlaitError) -> Event:
        told = error_object(error)["error"]
        assert isinstance(told, dict)
        about = {key: told[key] for key in ("code", "message", "param")}
        return self._event("error", about)

    def answer(self, choices: Sequence[tuple[ChoiceState, Finished]]) -> Json:
        ((choice, finished),) = choices
        if choice.text or not choice.calls:
            self._items.append(TEXT)
        self._items += [call.index for call in choice.calls]
        return self._whole(choice, finished)

    def _whole(self, choice: ChoiceState, finished: Finished) -> Json:
        status = _status(finished)
        items = [self._item(choice, which, status) for which in self._items]
        return self._response(status, items, finished)

    def _response(
        self, status: str, items: Sequence[Json], finished: Finished | None = None
    ) -> Json:
        echo, envelope = self._envelope.echo, self._envelope
        is_cut = status == "incomplete"
        return {
            "id": envelope.response_id,
            "object": "response",
            "created_at": envelope.created_s,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": echo.get("instructions"),
            "max_output_tokens": echo.get("max_output_tokens"),
            "metadata": echo.get("metadata", {}),
            "model": envelope.model_id,
            "output": list(items),
            "parallel_tool_calls": echo.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": envelope.service_tier,
            "store": False,
            "temperature": echo.get("temperature", 1.0),
            "text": echo.get("text", {"format": {"type": "text"}}),
            "tool_choice": echo.get("tool_choice", "auto"),
            "tools": echo.get("tools", []),
            "top_logprobs": echo.get("top_logprobs", 0),
            "top_p": echo.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None if finished is None else _usage(finished),
            "user": echo.get("user"),
        }

    def _opened(self, choice: ChoiceState, which: int) -> list[Event]:
        """An open item for `which`: what was open before is done."""
        if self._is_open and self._items[-1] == which:
            return []
        events = self._closed_item(choice, None)
        self._items.append(which)
        self._is_open = True
        item = self._item(choice, which, "in_progress", is_new=True)
        added = {"output_index": len(self._items) - 1, "item": item}
        events.append(self._event("response.output_item.added", added))
        if which == TEXT:
            part = {**self._about(choice), "content_index": 0, "part": _part("", [])}
            events.append(self._event("response.content_part.added", part))
        return events

    def _closed_item(self, choice: ChoiceState, finished: Finished | None) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        which, about = self._items[-1], self._about(choice)
        item = self._item(choice, which, "completed" if finished is None else _status(finished))
        events: list[Event] = []
        if which == TEXT:
            part = _part(choice.text, _logprobs(self._envelope, choice))
            told = {**about, "content_index": 0}
            done = {**told, "text": part["text"], "logprobs": part["logprobs"]}
            events.append(self._event("response.output_text.done", done))
            events.append(self._event("response.content_part.done", {**told, "part": part}))
        else:
            call = choice.calls[which]
            done = {**about, "name": call.name, "arguments": call.arguments}
            events.append(self._event("response.function_call_arguments.done", done))
        told = {"output_index": len(self._items) - 1, "item": item}
        return [*events, self._event("response.output_item.done", told)]

    def _about(self, choice: ChoiceState) -> Json:
        item_id = self._item_id(choice, self._items[-1])
        return {"item_id": item_id, "output_index": len(self._items) - 1}

    def _item_id(self, choice: ChoiceState, which: int) -> str:
        name = self._envelope.response_id.removeprefix("resp_")
        return f"msg_{name}" if which == TEXT else f"fc_{name}_{which}"

    def _item(self, choice: ChoiceState, which: int, status: str, *, is_new: bool = False) -> Json:
        item_id = self._item_id(choice, which)
        if which == TEXT:
            part = _part(choice.text, _logprobs(self._envelope, choice))
            content = [] if is_new else [part]
            message = {"id": item_id, "type": "message", "status": status, "role": "assistant"}
            return {**message, "content": content}
        call = choice.calls[which]
        return {
            "id": item_id,
            "type": "function_call",
            "status": status,
            "call_id": call.call_id,
            "name": call.name,
            "arguments": "" if is_new else call.arguments,
        }

    def _event(self, kind: str, content: Json) -> Event:
        self._num_events += 1
        return Event({"type": kind, "sequence_number": self._num_events - 1, **content}, kind)


def _part(text: str, logprobs: object) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _logprobs(envelope: Envelope, choice: ChoiceState, delta: Delta | None = None) -> object:
    """Of one piece, or of all of them."""
    tokens = choice.tokens if delta is None else delta.tokens
    told = logprobs_of(envelope, choice, tokens)
    return [] if told is None else told["content"]


def _status(finished: Finished) -> str:
    return "incomplete" if finished.reason is FinishReason.LENGTH else "completed"


def _usage(finished: Finished) -> Json:
    return {
        "input_tokens": finished.prompt_tokens,
        "input_tokens_details": {"cached_tokens": finished.cached_tokens},
        "output_tokens": finished.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
    }
