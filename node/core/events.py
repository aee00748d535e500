"""Everything that can happen to a node. Facts, in the past tense; they carry no time.

`sender` is the neighbour whose certificate the stream was opened with, None for the gateway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from node.core.messages import Activations, Broken, PrefixShort, StageOpen, StatusCode, Token
from plait.types import (
    DraftState,
    FinishReason,
    HeldSpan,
    LayerSpan,
    ModelId,
    ModelSource,
    ModelSpec,
    NodeId,
    Reason,
    RequestId,
    TokenLogprob,
)


class DrawnToken(Protocol):
    """A token that the last stage drew."""

    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def top_logprobs(self) -> tuple[TokenLogprob, ...]: ...


class RowOutcome(Protocol):
    """What a step made of the rows of one request: hidden rows, a token, or an error.

    `accepted` are guesses that were right, and come before the token; where some were wrong,
    `num_tokens` is less than the rows that were run: the others do not count.
    """

    @property
    def request_id(self) -> RequestId: ...
    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def sample(self) -> bool: ...
    @property
    def hidden(self) -> bytes | None: ...
    @property
    def accepted(self) -> Sequence[DrawnToken]: ...
    @property
    def token_id(self) -> int | None: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def top_logprobs(self) -> tuple[TokenLogprob, ...]: ...
    @property
    def error(self) -> Reason | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStarted:
    """The gateway starts a request on this node, its first stage."""

    open: StageOpen
    prompt_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class OpenReceived:
    """The stage before asks this node to be the next one."""

    sender: NodeId
    open: StageOpen


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRefused:
    """An Open whose ticket or parameters did not pass; nothing about it can be trusted."""

    sender: NodeId | None
    request_id: RequestId
    epoch: int
    stage_index: int
    code: StatusCode
    reason: Reason


@dataclass(frozen=True, slots=True)
class ActivationsReceived:
    """Rows from the stage before."""

    sender: NodeId
    activations: Activations


@dataclass(frozen=True, slots=True)
class TokenReceived:
    """A token round the ring, from the last stage."""

    sender: NodeId
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseReceived:
    """The stage before, or the gateway, ends a request."""

    sender: NodeId | None
    request_id: RequestId
    epoch: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class BrokenReceived:
    """The next stage gave up."""

    sender: NodeId
    broken: Broken


@dataclass(frozen=True, slots=True)
class PrefixShortReceived:
    """The next stage, or one after it, has less of a prompt's KV than it was told."""

    sender: NodeId
    short: PrefixShort


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRejected:
    """A frame that could not be decoded; `request_id` where that much was readable."""

    sender: NodeId | None
    request_id: RequestId | None
    epoch: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRefused:
    """A link's queue is full: this frame was not sent."""

    neighbour_id: NodeId
    request_id: RequestId
    epoch: int


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A stream with a neighbour stands."""

    neighbour_id: NodeId


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A stream with a neighbour broke, or could not be opened."""

    neighbour_id: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class GatewayLinkUp:
    """The stream to the gateway stands."""


@dataclass(frozen=True, slots=True)
class GatewayLinkDown:
    """The stream to the gateway broke."""


@dataclass(frozen=True, slots=True)
class KvReserved:
    """The engine has admitted the request, and has the KV of `cached_tokens` of it already."""

    request_id: RequestId
    epoch: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class KvRefused:
    """The engine has not."""

    request_id: RequestId
    epoch: int
    code: StatusCode
    reason: Reason


@dataclass(frozen=True, slots=True)
class StepFinished:
    """One step of the engine, with the outcome of each request in it."""

    outcomes: Sequence[RowOutcome]


@dataclass(frozen=True, slots=True)
class Drafted:
    """What the draft model guesses; a guess took it `step_ms`. Nothing where it has no room for the
    request, or there is no such model."""

    request_id: RequestId
    epoch: int
    token_ids: tuple[int, ...]
    step_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelChanged:
    """What the draft model of this node does for what is held, and `why` it does not guess; where
    this `is_final`, whatever is held later."""

    state: DraftState
    why: str = ""
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class ModelOffered:
    """A model that the network serves."""

    spec: ModelSpec
    source: ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAttached:
    """The coordinator said welcome."""

    models: tuple[ModelOffered, ...]
    frame_bytes_max: int


@dataclass(frozen=True, slots=True)
class ControlDetached:
    """The control stream closed; open requests go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanAssigned:
    """The coordinator wants these layers held."""

    allocation_epoch: int
    model_id: ModelId
    span: LayerSpan
    kv_tokens_min: int
    reason: str


@dataclass(frozen=True, slots=True)
class SpanUnassigned:
    """The coordinator wants nothing held."""

    allocation_epoch: int


@dataclass(frozen=True, slots=True)
class SpanLoaded:
    """The engine has the span in memory."""

    held: HeldSpan


@dataclass(frozen=True, slots=True)
class SpanLoadFailed:
    """It has not; what was held before is gone too."""

    allocation_epoch: int
    code: StatusCode
    reason: Reason


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """The coordinator takes this node out in order."""

    limit_ms: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The owner wants the node to leave. `limit_ms` None: within its usual limit."""

    reason: str
    limit_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The coordinator dropped this incarnation."""

    reason: Reason
    may_rejoin: bool


@dataclass(frozen=True, slots=True)
class Ticked:
    """The clock reached a deadline that the core asked for."""


DataEvent = (
    RequestStarted
    | OpenReceived
    | OpenRefused
    | ActivationsReceived
    | TokenReceived
    | CloseReceived
    | BrokenReceived
    | PrefixShortReceived
    | FrameRejected
    | SendRefused
    | LinkUp
    | LinkDown
    | GatewayLinkUp
    | GatewayLinkDown
    | KvReserved
    | KvRefused
    | StepFinished
    | Drafted
)
LifecycleEvent = (
    ControlAttached
    | DraftModelChanged
    | ControlDetached
    | SpanAssigned
    | SpanUnassigned
    | SpanLoaded
    | SpanLoadFailed
    | DrainOrdered
    | StopAsked
    | Evicted
)
Event = DataEvent | LifecycleEvent | Ticked
