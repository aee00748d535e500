"""How the last stage chooses tokens."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CONSTRAINT_CHARS_MAX: Final = 65_536
"""Longest schema, pattern or grammar that a request may carry."""

LOGIT_BIAS_MAX: Final = 1_024
"""Tokens that a request may favour or avoid."""


DRAFTS_MAX: Final = 15
"""Guessed tokens that may go along with one: so that a frame confirms the end of one KV block."""


class FinishReason(StrEnum):
    """Why a generation ended. TOOL_CALLS is a STOP whose answer calls functions."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    TOOL_CALLS = "tool_calls"


class ConstraintKind(StrEnum):
    """How a constraint is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the generated text must be: an instance of a JSON schema, a match of a regular
    expression from its beginning to its end, or a sentence of a grammar in Lark's notation."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Defaults leave the model's distribution as it is. Temperature 0 is greedy.

    The order is: penalties, bias, constraint, temperature, top-k, top-p, min-p, draw. The draw
    comes from a counter-based generator keyed by (seed, position), so a resumed request draws the
    same token. `top_logprobs` None means no logprobs; 0 the chosen token's only. `logit_bias` are
    (token id, what is added to its logit).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    top_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    constraint: Constraint | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    @property
    def needs_history(self) -> bool:
        """Whether a token depends on those generated before it by more than the model."""
        return self.has_penalties or self.constraint is not None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A vocabulary index and its natural-log probability before temperature."""

    token_id: int
    logprob: float
