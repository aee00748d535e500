"""OpenAI's request bodies, and what plait makes of them.

Every field of the published schema is either read here or listed as refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from coordinator.gateway import fields
from coordinator.gateway.fields import Fields
from coordinator.gateway.messages import read_messages
from coordinator.gateway.order import (
    SEEDS,
    Conversation,
    Order,
    Prompt,
    PromptIds,
    RawPrompt,
    check_order,
    check_text,
)
from coordinator.gateway.response_format import read_response_format
from coordinator.gateway.tool_fields import read_tool_use
from plait.errors import InvalidRequestError
from plait.types import DRAFTS_MAX, SamplingParams
from scheduler.selection.fairness import SloClass

CHOICES_MAX: Final = 16
COMPLETION_MAX_TOKENS: Final = 16
"""The published default of /v1/completions."""

COMPLETION_LOGPROBS_MAX: Final = 5
TOKEN_ID_DIGITS_MAX: Final = 9

TIERS: Final = {
    "auto": SloClass.INTERACTIVE,
    "default": SloClass.INTERACTIVE,
    "flex": SloClass.BATCH,
}
"""Values of service_tier; others are refused by name."""

CHAT_REFUSED: Final = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "metadata",
        "modalities",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "store",
        "verbosity",
        "web_search_options",
    }
)
"""Published fields of /v1/chat/completions that plait does not honour; null passes."""

COMPLETION_REFUSED: Final = frozenset({"best_of", "echo", "suffix"})
"""Published fields of /v1/completions that plait does not honour; null passes."""

_STREAM_OPTIONS_REFUSED: Final = frozenset({"include_obfuscation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOrder:
    """A request of either kind: `orders` are its choices, in order of their index.

    `user` is the caller's own name for an end user; only its hash is logged. `echo` is what the
    answer repeats of the request.
    """

    orders: tuple[Order, ...]
    model_id: str
    is_chat: bool
    is_stream: bool
    includes_usage: bool
    top_logprobs: int | None
    user: str | None
    choices_per_prompt: int = 1
    echo: Mapping[str, object] = field(default_factory=dict)


def read_chat(content: Mapping[str, object]) -> CompletionOrder:
    """The body of /v1/chat/completions. Raises InvalidRequestError naming the parameter."""
    reader = Fields(content)
    messages = reader.require("messages", read_messages)
    prompt = Conversation(messages, read_tool_use(reader))
    top_logprobs = _chat_logprobs(reader)
    order = _read_common(
        reader, prompt=prompt, max_tokens=_chat_max_tokens(reader), top_logprobs=top_logprobs
    )
    return _finish(reader, order, (prompt,), is_chat=True, refused=CHAT_REFUSED)


def read_completion(content: Mapping[str, object]) -> CompletionOrder:
    """The body of /v1/completions. Raises InvalidRequestError naming the parameter."""
    reader = Fields(content)
    prompts = reader.require("prompt", _read_prompts)
    max_tokens = reader.take("max_tokens", fields.integer, COMPLETION_MAX_TOKENS)
    top_logprobs = reader.take("logprobs", fields.integer_between(0, COMPLETION_LOGPROBS_MAX), -1)
    order = _read_common(
        reader,
        prompt=prompts[0],
        max_tokens=max_tokens,
        top_logprobs=None if top_logprobs < 0 else top_logprobs,
    )
    return _finish(reader, order, prompts, is_chat=False, refused=COMPLETION_REFUSED)


def _read_common(
    reader: Fields, *, prompt: Prompt, max_tokens: int | None, top_logprobs: int | None
) -> Order:
    seed = reader.take("seed", fields.integer_between(-(SEEDS // 2), SEEDS - 1), None)
    tier = reader.take("service_tier", fields.one_of(*TIERS), "default")
    return Order(
        prompt=prompt,
        model_id=reader.require("model", fields.text),
        max_tokens=max_tokens,
        sampling=SamplingParams(
            temperature=reader.take("temperature", fields.number, 1.0),
            top_k=reader.take("top_k", fields.integer_between(0, 1 << 31), 0),
            top_p=reader.take("top_p", fields.number, 1.0),
            min_p=reader.take("min_p", fields.number, 0.0),
            presence_penalty=reader.take("presence_penalty", fields.number, 0.0),
            frequency_penalty=reader.take("frequency_penalty", fields.number, 0.0),
            repetition_penalty=reader.take("repetition_penalty", fields.number, 1.0),
            top_logprobs=top_logprobs,
            logit_bias=reader.take("logit_bias", _read_bias, ()),
            constraint=reader.take("response_format", read_response_format, None),
        ),
        seed=None if seed is None else seed % SEEDS,
        stop=reader.take("stop", fields.strings, ()),
        draft_tokens=reader.take("draft_tokens", fields.integer_between(0, DRAFTS_MAX), None),
        slo=TIERS[tier],
    )


def _finish(
    reader: Fields,
    order: Order,
    prompts: tuple[Prompt, ...],
    *,
    is_chat: bool,
    refused: frozenset[str],
) -> CompletionOrder:
    num_choices = reader.take("n", fields.integer_between(1, CHOICES_MAX), 1)
    user = reader.take("user", fields.text, None)
    if user is not None:
        check_text(user, "user")
    is_stream = reader.take("stream", fields.flag, default=False)
    options = reader.take("stream_options", fields.json_object, None)
    includes_usage = _read_stream_options(options, is_stream=is_stream)
    reader.refuse_rest(refused)
    if len(prompts) * num_choices > CHOICES_MAX:
        raise InvalidRequestError(
            f"{len(prompts)} prompts with n = {num_choices} are more than {CHOICES_MAX} choices",
            param="n",
        )
    orders = tuple(_choice(order, prompt, at) for prompt in prompts for at in range(num_choices))
    for prompt in prompts:
        check_order(_choice(order, prompt, 0))
    return CompletionOrder(
        orders=orders,
        model_id=order.model_id,
        is_chat=is_chat,
        is_stream=is_stream,
        includes_usage=includes_usage,
        top_logprobs=order.sampling.top_logprobs,
        user=user,
        choices_per_prompt=num_choices,
    )


def _choice(order: Order, prompt: Prompt, at: int) -> Order:
    seed = None if order.seed is None else (order.seed + at) % SEEDS
    return replace(order, prompt=prompt, seed=seed)


def _read_bias(name: str, value: object) -> tuple[tuple[int, float], ...]:
    """Token ids, as JSON writes keys, and what is added to their logits."""
    biases: dict[int, float] = {}
    for key, bias in fields.json_object(name, value).items():
        if not (key.isascii() and key.isdecimal() and len(key) <= TOKEN_ID_DIGITS_MAX):
            raise InvalidRequestError(
                f"{name} has the key {key[:20]!r}, which is no token id", param=name
            )
        if int(key) in biases:
            raise InvalidRequestError(f"{name} names token {int(key)} twice", param=name)
        biases[int(key)] = fields.number(f"{name}.{key}", bias)
    return tuple(sorted(biases.items()))


def _read_stream_options(options: Mapping[str, object] | None, *, is_stream: bool) -> bool:
    if options is None:
        return False
    if not is_stream:
        raise InvalidRequestError(
            "stream_options is only allowed where stream is true", param="stream_options"
        )
    reader = Fields(options, "stream_options")
    includes_usage = reader.take("include_usage", fields.flag, default=False)
    reader.refuse_rest(_STREAM_OPTIONS_REFUSED)
    return includes_usage


def _chat_max_tokens(reader: Fields) -> int | None:
    old = reader.take("max_tokens", fields.integer, None)
    new = reader.take("max_completion_tokens", fields.integer, None)
    for name, value in (("max_tokens", old), ("max_completion_tokens", new)):
        if value is not None and value < 1:
            raise InvalidRequestError(f"{name} must be at least 1, not {value}", param=name)
    if old is not None and new is not None and old != new:
        raise InvalidRequestError(
            "max_tokens and max_completion_tokens differ: give one of them",
            param="max_completion_tokens",
        )
    return new if new is not None else old


def _chat_logprobs(reader: Fields) -> int | None:
    wanted = reader.take("logprobs", fields.flag, default=False)
    top = reader.take("top_logprobs", fields.integer_between(0, 20), None)
    if top is not None and not wanted:
        raise InvalidRequestError(
            "top_logprobs is only allowed where logprobs is true", param="top_logprobs"
        )
    return (top or 0) if wanted else None


def _read_prompts(name: str, value: object) -> tuple[Prompt, ...]:
    """A string, strings, token ids, or arrays of token ids."""
    if isinstance(value, str):
        return (RawPrompt(value),)
    items = fields.array(name, value)
    if not items:
        raise InvalidRequestError(f"{name} is empty", param=name)
    if all(isinstance(item, str) for item in items):
        return tuple(RawPrompt(fields.text(name, item)) for item in items)
    if all(isinstance(item, list) for item in items):
        return tuple(_read_ids(f"{name}[{at}]", item) for at, item in enumerate(items))
    return (_read_ids(name, items),)


def _read_ids(name: str, value: object) -> PromptIds:
    read = fields.integer_between(0, (1 << 31) - 1)
    return PromptIds(
        tuple(read(f"{name}[{at}]", item) for at, item in enumerate(fields.array(name, value)))
    )
