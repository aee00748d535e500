"""What stages say to each other and to the gateway, free of any encoding.

The classes on the path of every token are plain slots classes: a frozen dataclass costs three
times as much to build.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from plait.types import (
    DType,
    FinishReason,
    ModelId,
    NodeId,
    Reason,
    RequestId,
    SamplingParams,
    TicketStage,
    TokenLogprob,
)

ROWS_INVALID: Final = "frame_rows"
"""An engine's word for rows that arrived and cannot be read."""


class StatusCode(IntEnum):
    """The canonical gRPC codes that a stage may answer with."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpen:
    """An Open whose ticket has been verified: its hop, its sender, its dates, and that it is new.

    `ticket` is (payload, signature), to be passed on; `valid_ms` is what was left of its life
    when it was verified. `hop_dtypes` are those of activations from each stage to the next one;
    none where all are the `wire_dtype`. `block_names` are those of the prompt's whole blocks, of
    which every stage so far has the first `cached_blocks`: their rows do not come. `drafts_max` is
    how many guesses a frame may hold: the least of what all stages so far take, or on the first one
    what the gateway said, if anything.
    """

    request_id: RequestId
    epoch: int
    ticket: tuple[bytes, bytes]
    valid_ms: int
    model_id: ModelId
    stages: tuple[TicketStage, ...]
    stage_index: int
    kv_tokens: int
    wire_dtype: DType
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...]
    max_new_tokens: int
    prompt_tokens: int
    penalty_prompt_ids: tuple[int, ...] = ()
    penalty_generated_ids: tuple[int, ...] = ()
    trace_id: int = 0
    cache_salt: bytes = b""
    admission: int = 0
    block_names: tuple[bytes, ...] = ()
    cached_blocks: int = 0
    hop_dtypes: tuple[DType, ...] = ()
    drafts_max: int | None = None

    @property
    def sent_dtype(self) -> DType:
        """Of activations to the next stage."""
        return self.hop_dtypes[self.stage_index] if self.hop_dtypes else self.wire_dtype

    @property
    def arriving_dtype(self) -> DType:
        """Of activations from the stage before; on the first one, of those that leave."""
        return self.hop_dtypes[max(0, self.stage_index - 1)] if self.hop_dtypes else self.wire_dtype

    def __post_init__(self) -> None:
        if self.hop_dtypes and len(self.hop_dtypes) != len(self.stages):
            raise ValueError("one dtype for each stage's hop")
        if not 0 <= self.stage_index < len(self.stages):
            raise ValueError(f"no stage {self.stage_index} among {len(self.stages)}")


class Activations:
    """`num_tokens` rows of hidden states, row-major little endian, from `position` on.

    `dtype` None means the one that the ticket names for the hop. `sample`: the last stage draws
    after the last row.
    `block_name`: of the block that rows up to the last one that is no guess have completed, where
    the Open did not say. `drafted_ids`: tokens of the last rows, all but one, which are guesses:
    what comes next begins behind those that were right.
    """

    __slots__ = (
        "block_name",
        "drafted_ids",
        "dtype",
        "epoch",
        "num_tokens",
        "payload",
        "position",
        "request_id",
        "sample",
    )

    def __init__(
        self,
        request_id: RequestId,
        epoch: int,
        position: int,
        num_tokens: int,
        payload: bytes,
        *,
        sample: bool,
        dtype: DType | None = None,
        block_name: bytes | None = None,
        drafted_ids: tuple[int, ...] = (),
    ) -> None:
        self.request_id = request_id
        self.epoch = epoch
        self.position = position
        self.num_tokens = num_tokens
        self.payload = payload
        self.sample = sample
        self.dtype = dtype
        self.block_name = block_name
        self.drafted_ids = drafted_ids

    @property
    def is_prompt(self) -> bool:
        """Whether these rows are more than a token and guesses behind it."""
        return self.num_tokens > 1 + len(self.drafted_ids)


class Token:
    """A drawn token; `position` is its place in the sequence, prompt included. `drafts_max` is for
    the first stage: so many guesses in a frame does every stage of the chain take. For the gateway:
    whether it was guessed; where not, how many guesses its trip had."""

    __slots__ = (
        "drafts_max",
        "epoch",
        "finish_reason",
        "is_guess",
        "logprob",
        "num_guesses",
        "position",
        "request_id",
        "token_id",
        "top_logprobs",
    )

    def __init__(
        self,
        request_id: RequestId,
        epoch: int,
        position: int,
        token_id: int,
        *,
        finish_reason: FinishReason | None = None,
        logprob: float | None = None,
        top_logprobs: tuple[TokenLogprob, ...] = (),
        drafts_max: int = 0,
        is_guess: bool = False,
        num_guesses: int = 0,
    ) -> None:
        self.request_id = request_id
        self.epoch = epoch
        self.position = position
        self.token_id = token_id
        self.finish_reason = finish_reason
        self.logprob = logprob
        self.top_logprobs = top_logprobs
        self.drafts_max = drafts_max
        self.is_guess = is_guess
        self.num_guesses = num_guesses


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Every stage of the chain has its KV, and had that of `cached_tokens` of the prompt before."""

    request_id: RequestId
    epoch: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A stage would not open or could not go on. `node_id` is who is blamed."""

    request_id: RequestId
    epoch: int
    stage_index: int
    node_id: NodeId
    code: StatusCode
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Free this epoch of the request and all older ones."""

    request_id: RequestId
    epoch: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class PrefixShort:
    """A stage has only so many whole blocks of the prompt's KV: fewer than it was told."""

    request_id: RequestId
    epoch: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRoute:
    """What this stage still holds of a request: the `tokens` from `position` on where it is the
    last one; else none. `ticket` is (payload, signature); `cached_tokens` are those of Opened."""

    request_id: RequestId
    ticket: tuple[bytes, bytes]
    position: int
    tokens: tuple[Token, ...] = ()
    is_running: bool = True
    cached_tokens: int = 0


LinkMessage = StageOpen | Activations | Token | Broken | Close | PrefixShort
"""What a hop carries."""

GatewayMessage = Opened | Token | Broken | KeptRoute
"""What goes up to the gateway."""
