"""Building requests, the same for both clients."""

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from plait.errors import InvalidRequestError
from plait.wire.v1 import common_pb2, gateway_pb2

Messages = Sequence[Mapping[str, str]]
"""Oldest first; each with "role" (system, user or assistant) and "content"."""

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

    model: name; may be left out where the network serves one model.
    max_tokens: longest answer.
    temperature: 0 is greedy; at most 2.
    top_k, top_p, min_p: cut the distribution; 0, 1 and 0 are off.
    presence_penalty, frequency_penalty: -2 to 2; repetition_penalty: 1 is off.
    seed: equal seeds and prompts give equal answers.
    top_logprobs: 0 to 20 alternatives per token; None: no log probabilities at all.
    stop: the answer ends before any of these.
    ignore_eos: go on past the end of sequence (benchmarks).
    service_tier: "default" (or "auto") where somebody watches, "flex" for work that can wait.
    request_id: your own name; the same again attaches to the same generation.
    timeout_s: longest wait for the whole answer; None: the client's.
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
    ignore_eos: bool
    service_tier: str | None
    request_id: str | None
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
    _set(request, "max_tokens", options.get("max_tokens"))
    request.sampling.CopyFrom(sampling)
    try:
        request.stop.extend([stop] if isinstance(stop, str) else stop or ())
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"stop: {error}", param="stop") from None
    _set_prompt(request, prompt)
    return request


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
            is_whole = turn.keys() == {"role", "content"}
            if not is_whole or not all(isinstance(value, str) for value in turn.values()):
                raise InvalidRequestError(
                    f"messages[{at}] must have a role and a content, both text, and nothing else",
                    param=param,
                )
            request.chat.messages.add(role=turn["role"], content=turn["content"])
    except (TypeError, ValueError) as error:  # includes text that UTF-8 cannot carry
        raise InvalidRequestError(f"{param} cannot be sent: {error}", param=param) from error


def _ids(prompt: Sequence[int] | Messages) -> list[int]:
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) != len(prompt):
        raise InvalidRequestError("a prompt of token ids holds something else", param="prompt")
    return ids


def _turns(prompt: Sequence[int] | Messages) -> list[Mapping[str, str]]:
    turns = [item for item in prompt if isinstance(item, Mapping)]
    if len(turns) != len(prompt):
        raise InvalidRequestError(
            "messages must be mappings with role and content", param="messages"
        )
    return turns
