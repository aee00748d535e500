"""What a client asks for, whichever door it came through, and what may be asked."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.gateway.conversation import ROLES, ToolUse, Turn
from coordinator.gateway.reader import Resume
from plait.errors import InvalidRequestError
from plait.types import DRAFTS_MAX, LOGIT_BIAS_MAX, SamplingParams
from plait.wire.trace_context import TraceParent
from scheduler.selection.fairness import SloClass

STOPS_MAX: Final = 16
STOP_CHARS_MAX: Final = 1_024
TOP_LOGPROBS_MAX: Final = 20
SEEDS: Final = 1 << 64
LOGIT_BIAS: Final = 100.0
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")

RANGES: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 10.0),
}
"""Allowed values, both ends included; top_p must be above 0."""


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """Text as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, oldest first, for the model's template, and the functions that it may call."""

    turns: tuple[Turn, ...]
    tools: ToolUse | None = None


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Token ids as they are."""

    ids: tuple[int, ...]


Prompt = RawPrompt | Conversation | PromptIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One generation. `model_id` empty: the network's only model. `seed` None: the gateway draws
    one. `max_tokens` None: the gateway's default. `draft_tokens` None: as many as pay, and
    none where a seed was given for draws that are to come again.
    `request_id` empty: the gateway draws one. `resume`: the client asked this before, and lost its
    stream. `trace`: what the client does it for, in its own trace."""

    prompt: Prompt
    model_id: str = ""
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    request_id: str = ""
    ignore_eos: bool = False
    draft_tokens: int | None = None
    slo: SloClass = SloClass.INTERACTIVE
    resume: Resume | None = None
    trace: TraceParent | None = None


def drafts_of(order: Order) -> int | None:
    """Guesses that may go along; None: as many as pay.

    Rows that are computed together round differently from rows alone, in the last bits, and how
    many go together depends on measured times. Who gives a seed asks for the same draws again.
    """
    is_repeatable = order.seed is not None and order.sampling.temperature > 0
    return 0 if order.draft_tokens is None and is_repeatable else order.draft_tokens


def check_order(order: Order) -> None:
    """Raises InvalidRequestError naming the first parameter that is wrong."""
    check_sampling(order.sampling)
    check_stop(order.stop)
    if order.max_tokens is not None and order.max_tokens < 1:
        raise InvalidRequestError(
            f"max_tokens must be at least 1, not {order.max_tokens}", param="max_tokens"
        )
    if order.draft_tokens is not None and not 0 <= order.draft_tokens <= DRAFTS_MAX:
        raise InvalidRequestError(
            f"draft_tokens must be between 0 and {DRAFTS_MAX}, not {order.draft_tokens}",
            param="draft_tokens",
        )
    if order.request_id and not _REQUEST_ID.match(order.request_id):
        raise InvalidRequestError(
            "request_id must be 1 to 32 characters of A-Z, a-z, 0-9, _ and -", param="request_id"
        )
    match order.prompt:
        case RawPrompt(text):
            check_text(text, "prompt")
            if not text:
                raise InvalidRequestError("the prompt is empty", param="prompt")
        case PromptIds(ids):
            if not ids:
                raise InvalidRequestError("the prompt has no tokens", param="prompt")
        case Conversation(turns, tools):
            check_turns(turns)
            for at, function in enumerate(tools.functions if tools is not None else ()):
                check_text(function.description, f"tools[{at}].function.description")
    is_held = order.sampling.constraint is not None
    if isinstance(order.prompt, Conversation) and order.prompt.tools is not None:
        is_held = is_held or order.prompt.tools.is_constrained
    if is_held and order.ignore_eos:
        raise InvalidRequestError(
            "ignore_eos is not allowed beside response_format or forced tools", param="ignore_eos"
        )


def check_turns(turns: Sequence[Turn]) -> None:
    """Raises InvalidRequestError for no messages, an unknown role or unpaired surrogates."""
    if not turns:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    for at, turn in enumerate(turns):
        if turn.role not in ROLES:
            raise InvalidRequestError(
                f"messages[{at}].role is {turn.role!r}: plait knows system, user, assistant and "
                "tool",
                param=f"messages[{at}].role",
            )
        check_text(turn.content, f"messages[{at}].content")
        for call in turn.calls:
            check_text(call.name + call.arguments + call.call_id, f"messages[{at}].tool_calls")
        check_text(turn.call_id, f"messages[{at}].tool_call_id")


def check_text(text: str, param: str) -> None:
    """Raises InvalidRequestError for text that UTF-8 cannot carry (a lone surrogate)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{param} holds half of a surrogate pair: it is not valid Unicode", param=param
        ) from None


def check_stop(stop: Sequence[str]) -> None:
    """Raises InvalidRequestError for too many, empty or overlong stop strings."""
    if len(stop) > STOPS_MAX:
        raise InvalidRequestError(
            f"{len(stop)} stop strings, at most {STOPS_MAX} are allowed", param="stop"
        )
    for text in stop:
        if not text:
            raise InvalidRequestError("a stop string is empty", param="stop")
        if len(text) > STOP_CHARS_MAX:
            raise InvalidRequestError(
                f"a stop string has more than {STOP_CHARS_MAX} characters", param="stop"
            )
        check_text(text, "stop")


def check_sampling(sampling: SamplingParams) -> None:
    """Raises InvalidRequestError for a value that is not a number or out of range."""
    for name, (low, high) in RANGES.items():
        value: float = getattr(sampling, name)
        if not math.isfinite(value) or not low <= value <= high:
            raise InvalidRequestError(
                f"{name} must be between {low:g} and {high:g}, not {value}", param=name
            )
    if sampling.top_p == 0.0:
        raise InvalidRequestError("top_p must be above 0", param="top_p")
    if sampling.top_k < 0:
        raise InvalidRequestError("top_k must not be negative; 0 is off", param="top_k")
    if not 0 <= sampling.seed < SEEDS:
        raise InvalidRequestError("seed must be a 64-bit integer", param="seed")
    if len(sampling.logit_bias) > LOGIT_BIAS_MAX:
        raise InvalidRequestError(
            f"logit_bias names {len(sampling.logit_bias)} tokens, at most {LOGIT_BIAS_MAX} are "
            "taken",
            param="logit_bias",
        )
    for token_id, bias in sampling.logit_bias:
        if not abs(bias) <= LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias of token {token_id} must be between -100 and 100, not {bias}",
                param="logit_bias",
            )
    top = sampling.top_logprobs
    if top is not None and not 0 <= top <= TOP_LOGPROBS_MAX:
        raise InvalidRequestError(
            f"top_logprobs must be between 0 and {TOP_LOGPROBS_MAX}, not {top}",
            param="top_logprobs",
        )
