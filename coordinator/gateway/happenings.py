"""What a client can be told about its generation, in order: accepted, queued, routed, text and
calls, end."""

from dataclasses import dataclass

from plait.errors import PlaitError
from plait.types import FinishReason, ModelId, Reason, RequestId, Route, TokenLogprob
from scheduler.selection.fairness import SloClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The request is valid and handed to the core, which serves it as `slo`. Should the stream
    break before a chain is told of, `epoch` is what to come back with."""

    request_id: RequestId
    model_id: ModelId
    prompt_tokens: int
    slo: SloClass = SloClass.INTERACTIVE
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The request waits for a chain; `position` counts from 1, `wait_ms` None: nobody knows."""

    position: int
    reason: Reason
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A chain serves the request; again, with a higher epoch, when the first one broke. It had the
    KV of `cached_tokens` of the prompt, or that of the first token had."""

    epoch: int
    route: Route
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedToken:
    """One token. `logprob` is None where none was asked for; natural logarithms.

    `is_stop` marks an end-of-sequence token: it has no text in the answer. `text_at` counts the
    characters of the answer that were whole before the token. It `is_guess` where the chain guessed
    it; else it ends a trip in which so many guesses were checked.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    is_stop: bool = False
    text_at: int = 0
    is_guess: bool = False
    num_guesses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text and the tokens behind it; the text is empty while a character is incomplete."""

    text: str
    tokens: tuple[GeneratedToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A piece of the answer's function call number `index`. The first one carries `call_id` and
    `name`; `arguments` is what follows the earlier pieces of the JSON text."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end. `error` is set when `reason` is ERROR, `stop` where a stop string ended it. Times in
    ms since the submission. `cached_tokens` of the prompt did not have to be run."""

    reason: FinishReason
    error: PlaitError | None
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: int | None
    total_ms: int
    num_attempts: int
    stop: str = ""
    cached_tokens: int = 0


Happening = Accepted | Queued | Routed | Delta | CallDelta | Finished
