"""OpenAI's response objects, for answers and for chunks of a stream."""

from collections.abc import Sequence
from typing import Final

from coordinator.gateway.dialect import ChoiceState, Envelope, Event, Json
from coordinator.gateway.happenings import CallDelta, Delta, Finished, GeneratedToken
from coordinator.gateway.http_errors import error_object
from coordinator.gateway.tokens import Tokenizer
from plait.errors import PlaitError
from plait.types import FinishReason

LOGPROB_MIN: Final = -9999.0
"""What the published API writes for a probability of zero."""

_FINISH_REASONS: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class OpenAiDialect:
    """OpenAI's chat completions and completions."""

    last_words = b"data: [DONE]\n\n"

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def begun(self, choice: ChoiceState) -> list[Event]:
        if not self._envelope.is_chat:
            return []
        return [self._event(role_chunk(self._envelope, choice))]

    def piece(self, choice: ChoiceState, happening: Delta | CallDelta) -> list[Event]:
        if isinstance(happening, CallDelta):
            return [self._event(call_chunk(self._envelope, choice, happening))]
        if not happening.text and self._envelope.top_logprobs is None:
            return []
        return [self._event(text_chunk(self._envelope, choice, happening))]

    def ended(self, choice: ChoiceState, finished: Finished) -> list[Event]:
        return [self._event(end_chunk(self._envelope, choice, finished))]

    def closed(self, finished: Sequence[Finished]) -> list[Event]:
        if not self._envelope.includes_usage:
            return []
        return [Event(usage_chunk(self._envelope, self._usage(finished)))]

    def failed(self, error: PlaitError) -> Event:
        return Event(error_object(error))

    def answer(self, choices: Sequence[tuple[ChoiceState, Finished]]) -> Json:
        usage = self._usage([finished for _, finished in choices])
        return answer(self._envelope, choices, usage)

    def _event(self, chunk: Json) -> Event:
        return Event({**chunk, "usage": None} if self._envelope.includes_usage else chunk)

    def _usage(self, finished: Sequence[Finished]) -> Json:
        return usage_of(finished, self._envelope.num_choices_per_prompt)


def finish_word(finished: Finished) -> str | None:
    """OpenAI's finish_reason; None where the generation failed."""
    return _FINISH_REASONS.get(finished.reason)


def usage_of(finished: Sequence[Finished], num_choices_per_prompt: int = 1) -> Json:
    """Token counts over all choices; a prompt with several choices counts once."""
    prompts = finished[::num_choices_per_prompt]
    prompt = sum(end.prompt_tokens for end in prompts)
    completion = sum(end.completion_tokens for end in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(end.cached_tokens for end in prompts)},
    }


def role_chunk(envelope: Envelope, choice: ChoiceState) -> Json:
    """A chat stream's first chunk of a choice: the role and no text."""
    delta = {"role": "assistant", "content": ""}
    return _chunk(envelope, {"index": choice.index, "delta": delta, **_rest(None, None)})


def text_chunk(envelope: Envelope, choice: ChoiceState, delta: Delta) -> Json:
    """A piece of text."""
    logprobs = logprobs_of(envelope, choice, delta.tokens)
    body: Json = {"delta": {"content": delta.text}} if envelope.is_chat else {"text": delta.text}
    return _chunk(envelope, {"index": choice.index, **body, **_rest(logprobs, None)})


def call_chunk(envelope: Envelope, choice: ChoiceState, delta: CallDelta) -> Json:
    """A piece of a function call; the first one of a call names it."""
    call: Json = {"index": delta.index}
    function: Json = {"arguments": delta.arguments}
    if delta.call_id:
        call |= {"id": delta.call_id, "type": "function"}
        function = {"name": delta.name, **function}
    body = {"tool_calls": [{**call, "function": function}]}
    return _chunk(envelope, {"index": choice.index, "delta": body, **_rest(None, None)})


def end_chunk(envelope: Envelope, choice: ChoiceState, finished: Finished) -> Json:
    """The last chunk of a choice."""
    body: Json = {"delta": {}} if envelope.is_chat else {"text": ""}
    word = finish_word(finished)
    return _chunk(envelope, {"index": choice.index, **body, **_rest(None, word)})


def usage_chunk(envelope: Envelope, usage: Json) -> Json:
    """The chunk behind the last choice where usage was asked for."""
    return {**_chunk(envelope, None), "usage": usage}


def answer(
    envelope: Envelope, choices: Sequence[tuple[ChoiceState, Finished]], usage: Json
) -> Json:
    """The whole response of a request that does not stream."""
    return {
        "id": envelope.response_id,
        "object": "chat.completion" if envelope.is_chat else "text_completion",
        "created": envelope.created_s,
        "model": envelope.model_id,
        "choices": [_choice(envelope, choice, finished) for choice, finished in choices],
        "service_tier": envelope.service_tier,
        "usage": usage,
    }


def _choice(envelope: Envelope, choice: ChoiceState, finished: Finished) -> Json:
    text = choice.text
    message: Json = {"role": "assistant", "content": text, "refusal": None}
    if choice.calls:
        message["content"] = text or None
        message["tool_calls"] = [_call(call) for call in choice.calls]
    body: Json = {"message": message} if envelope.is_chat else {"text": text}
    logprobs = logprobs_of(envelope, choice, choice.tokens)
    return {"index": choice.index, **body, **_rest(logprobs, finish_word(finished))}


def _call(call: CallDelta) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _rest(logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"logprobs": logprobs, "finish_reason": finish_reason}


def _chunk(envelope: Envelope, choice: Json | None) -> Json:
    return {
        "id": envelope.response_id,
        "object": "chat.completion.chunk" if envelope.is_chat else "text_completion",
        "created": envelope.created_s,
        "model": envelope.model_id,
        "choices": [] if choice is None else [choice],
        "service_tier": envelope.service_tier,
    }


def logprobs_of(
    envelope: Envelope, choice: ChoiceState, tokens: Sequence[GeneratedToken]
) -> Json | None:
    """The `logprobs` object of some tokens; None where they were not asked for."""
    if envelope.top_logprobs is None:
        return None
    told = [token for token in tokens if not token.is_stop and token.logprob is not None]
    if envelope.is_chat:
        return {
            "content": [
                {
                    **_entry(choice.tokenizer, token.token_id, token.logprob),
                    "top_logprobs": [
                        _entry(choice.tokenizer, top.token_id, top.logprob)
                        for top in token.top_logprobs[: envelope.top_logprobs]
                    ],
                }
                for token in told
            ],
            "refusal": None,
        }
    return {
        "tokens": [_text(choice.tokenizer, token.token_id) for token in told],
        "token_logprobs": [_finite(token.logprob) for token in told],
        "top_logprobs": [
            {
                _text(choice.tokenizer, top.token_id): _finite(top.logprob)
                for top in token.top_logprobs[: envelope.top_logprobs]
            }
            for token in told
        ]
        if envelope.top_logprobs
        else None,
        "text_offset": [token.text_at for token in told],
    }


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> Json:
    return {
        "token": _text(tokenizer, token_id),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)) or None,
    }


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_text(token_id)


def _finite(logprob: float | None) -> float:
    return LOGPROB_MIN if logprob is None else max(logprob, LOGPROB_MIN)
