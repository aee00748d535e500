"""How the last stage chooses tokens."""

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Defaults leave the model's distribution as it is. Temperature 0 is greedy.

    The order is: penalties, temperature, top-k, top-p, min-p, draw. The draw comes from a
    counter-based generator keyed by (seed, position), so a resumed request draws the same token.
    `top_logprobs` None means no logprobs; 0 the chosen token's only.
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


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A vocabulary index and its natural-log probability before temperature."""

    token_id: int
    logprob: float
