"""Building requests, the same for both clients."""

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from plait.errors import InvalidRequestError
from plait.sdk.tools import choice_of, constraint_of, message_of, tools_of
from plait.wire.v1 import common_pb2, gateway_pb2

Messages = Sequence[Mapping[str, object]]
"""Oldest first; each with "role" (system, user, assistant or tool) and "content". An
assistant's may have "tool_calls" (see `Completion.message`), a tool's has its "tool_call_id"."""

Prompt = str | Sequence[int] | Messages
"""Raw text, raw token ids, or the messages of a chat."""

_SAMPLING: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "top_logprobs",
)


class GenerateOptions(TypedDict, total=False):
    """How to generate; all optional. Left out or None: the network's default.

    - model: name; may be left out where the network serves one model.
    - max_tokens: longest answer.
    - temperature: 0 is greedy; at most 2.
    - top_k, top_p, min_p: cut the distribution; 0, 1 and 0 are off.
    - presence_penalty, frequency_penalty: -2 to 2; repetition_penalty: 1 is off.
    - seed: equal seeds and prompts give equal answers.
    - top_logprobs: 0 to 20 alternatives per token; None: no log probabilities at all.
    - stop: the answer ends before any of these.
    - logit_bias: token ids and what is added to their logits, -100 to 100.
    - response_format: what the text must be, in OpenAI's form: {"type": "json_object"},
      {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}, and plait's own
      {"type": "regex", "pattern": ...} and {"type": "grammar", "grammar": ...} (Lark).
    - tools: functions that the model may call, in OpenAI's form; for chats.
    - tool_choice: "none", "auto", "required", or {"type": "function", "function": {"name": ...}}.
    - parallel_tool_calls: False: at most one call an answer.
    - draft_tokens: guesses that may go along with a token, 0 to 15, 0 for none; None: as many as
      pay, none with a seed and a temperature. They change the time an answer takes; a draw near
      the border of two tokens may fall on the other side.
    - ignore_eos: go on past the end of sequence (benchmarks).
    - service_tier: "default" (or "auto") where somebody watches, "flex" for work that can wait.
    - request_id: your own name; the same again attaches to the same generation.
    - traceparent: the span that asks, as W3C Trace Context writes it; the coordinator's trace goes
      on from there.
    - timeout_s: longest wait for the whole answer; None: the client's.
    """

    model: str | None
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    top_logprobs: int | None
    stop: str | Sequence[str] | None
    logit_bias: Mapping[int, float] | None
    response_format: Mapping[str, object] | None
    tools: Sequence[Mapping[str, object]] | None
    tool_choice: str | Mapping[str, object] | None
    parallel_tool_calls: bool | None
    draft_tokens: int | None
    ignore_eos: bool
    service_tier: str | None
    request_id: str | None
    traceparent: str | None
    timeout_s: float | None


_TIERS: Final = {
    "auto": gateway_pb2.SERVICE_TIER_DEFAULT,
    "default": gateway_pb2.SERVICE_TIER_DEFAULT,
    "flex": gateway_pb2.SERVICE_TIER_FLEX,
}
_KNOWN: Final = frozenset(GenerateOptions.__annotations__)


def build_request(prompt: Prompt, options: GenerateOptions) -> gateway_pb2.GenerateRequest:
    """Raises InvalidRequestError for what the wire cannot carry; the network checks the rest."""
    unknown = next((name for name in options if name not in _KNOWN), None)
    if unknown is not None:
        raise InvalidRequestError(f"{unknown} is not an option of plait", param=unknown)
    stop = options.get("stop")
    sampling = common_pb2.SamplingParams()
    request = gateway_pb2.GenerateRequest(
        model_id=options.get("model") or "",
        request_id=options.get("request_id") or "",
        ignore_eos=options.get("ignore_eos", False),
        service_tier=_tier(options.get("service_tier")),
    )
    for name in _SAMPLING:
        _set(sampling, name, options.get(name))
    _set_bias(sampling, options.get("logit_bias") or {})
    _set(request, "max_tokens", options.get("max_tokens"))
    _set(request, "draft_tokens", options.get("draft_tokens"))
    request.sampling.CopyFrom(sampling)
    try:
        _set_held(request, options)
    except (TypeError, ValueError) as error:  # includes text that UTF-8 cannot carry
        raise InvalidRequestError(f"the request cannot be sent: {error}") from error
    try:
        request.stop.extend([stop] if isinstance(stop, str) else stop or ())
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"stop: {error}", param="stop") from None
    _set_prompt(request, prompt)
    return request


def _set_bias(sampling: common_pb2.SamplingParams, biases: Mapping[int, float]) -> None:
    try:
        for token_id, bias in biases.items():
            sampling.logit_bias.add(token_id=int(token_id), bias=bias)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"logit_bias: {error}", param="logit_bias") from error


def _set_held(request: gateway_pb2.GenerateRequest, options: GenerateOptions) -> None:
    response_format, tools = options.get("response_format"), options.get("tools")
    choice, is_parallel = options.get("tool_choice"), options.get("parallel_tool_calls")
    if response_format is not None:
        constraint = constraint_of(response_format)
        if constraint is not None:
            request.sampling.constraint.CopyFrom(constraint)
    if tools:
        request.tools.extend(tools_of(tools))
    if choice is not None:
        request.tool_choice.CopyFrom(choice_of(choice))
    if is_parallel is not None:
        request.parallel_tool_calls = is_parallel


def _tier(name: str | None) -> gateway_pb2.ServiceTier.ValueType:
    tier = _TIERS.get("default" if name is None else name)
    if tier is None:
        raise InvalidRequestError(
            f"service_tier {name!r} is not offered by plait: auto, default or flex",
            param="service_tier",
        )
    return tier


def conversation(messages: Messages) -> Messages:
    """`messages` where they are turns, at least one. Raises InvalidRequestError naming them: an
    empty list alone would not say whether a prompt or a chat was meant."""
    if not messages:
        raise InvalidRequestError(
            "messages must hold at least one turn with a role and a content; "
            "`generate` continues raw text",
            param="messages",
        )
    _turns(messages)
    return messages


def _set(
    message: common_pb2.SamplingParams | gateway_pb2.GenerateRequest, name: str, value: object
) -> None:
    if value is None:
        return
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{name}: {value!r} is out of range", param=name) from error


def _set_prompt(request: gateway_pb2.GenerateRequest, prompt: Prompt) -> None:
    param = "prompt"
    try:
        if isinstance(prompt, str):
            request.prompt = prompt
            return
        if not prompt:
            raise InvalidRequestError("the prompt is empty", param=param)
        if isinstance(prompt[0], int):
            request.tokens.ids.extend(_ids(prompt))
            return
        param = "messages"
        for at, turn in enumerate(_turns(prompt)):
            request.chat.messages.append(message_of(f"messages[{at}]", turn))
    except (TypeError, ValueError) as error:  # includes text that UTF-8 cannot carry
        raise InvalidRequestError(f"{param} cannot be sent: {error}", param=param) from error


def _ids(prompt: Sequence[int] | Messages) -> list[int]:
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) != len(prompt):
        raise InvalidRequestError("a prompt of token ids holds something else", param="prompt")
    return ids


def _turns(prompt: Sequence[int] | Messages) -> list[Mapping[str, object]]:
    turns = [item for item in prompt if isinstance(item, Mapping)]
    if len(turns) != len(prompt):
        raise InvalidRequestError(
            "messages must be mappings with role and content", param="messages"
        )
    return turns
