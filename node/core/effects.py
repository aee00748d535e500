"""Everything a node's core can ask the world to do. Orders, in the imperative."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.core.messages import GatewayMessage, LinkMessage, StageOpen, StatusCode
from plait.types import (
    DType,
    HeldSpan,
    LayerSpan,
    ModelSource,
    ModelSpec,
    NodeId,
    Reason,
    RequestId,
    SamplingParams,
)


@dataclass(frozen=True, slots=True)
class Dial:
    """Have a stream with this neighbour; ends in LinkUp or LinkDown. Idempotent."""

    neighbour_id: NodeId
    addresses: tuple[str, ...]


class Send:
    """Queue a message for a neighbour; a full queue ends in SendRefused."""

    __slots__ = ("message", "neighbour_id")

    def __init__(self, neighbour_id: NodeId, message: LinkMessage) -> None:
        self.neighbour_id = neighbour_id
        self.message = message


class SendToGateway:
    """Queue a message for the gateway."""

    __slots__ = ("message",)

    def __init__(self, message: GatewayMessage) -> None:
        self.message = message


@dataclass(frozen=True, slots=True)
class ReserveKv:
    """Admit a request to the engine; ends in KvReserved or KvRefused. Its blocks are filed under
    `cache_path`."""

    open: StageOpen
    cache_path: bytes = b""


@dataclass(frozen=True, slots=True)
class ReleaseKv:
    """Free this epoch's slots and older ones'; idempotent."""

    request_id: RequestId
    epoch: int


@dataclass(frozen=True, slots=True)
class RewindKv:
    """Forget rows from `position` on, a block's first: they come again."""

    request_id: RequestId
    epoch: int
    position: int


class SubmitRows:
    """Run rows through the stage; ends in StepFinished. Exactly one of ids and hidden is set.

    Rows may begin where guesses of the last ones did (`drafted_ids`, tokens of the last rows): then
    those were wrong, and are replaced."""

    __slots__ = (
        "block_name",
        "drafted_ids",
        "dtype",
        "epoch",
        "hidden",
        "num_tokens",
        "position",
        "request_id",
        "sample",
        "token_ids",
    )

    def __init__(
        self,
        request_id: RequestId,
        epoch: int,
        position: int,
        num_tokens: int,
        *,
        dtype: DType,
        sample: bool,
        token_ids: Sequence[int] | None = None,
        hidden: bytes | None = None,
        block_name: bytes | None = None,
        drafted_ids: tuple[int, ...] = (),
    ) -> None:
        self.request_id = request_id
        self.epoch = epoch
        self.position = position
        self.num_tokens = num_tokens
        self.dtype = dtype
        self.sample = sample
        self.token_ids = token_ids
        self.hidden = hidden
        self.block_name = block_name
        self.drafted_ids = drafted_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Have the draft model guess what comes behind `token_ids`, which begin at `start`: `count`
    tokens; ends in Drafted. The sequence never becomes longer than `kv_tokens`; a row waits for the
    answer where it `is_waited` for. ReleaseKv ends it for the request."""

    request_id: RequestId
    epoch: int
    start: int
    token_ids: tuple[int, ...]
    count: int
    is_waited: bool
    kv_tokens: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpan:
    """Load these layers in place of what is held; ends in SpanLoaded or SpanLoadFailed."""

    spec: ModelSpec
    source: ModelSource
    span: LayerSpan
    allocation_epoch: int
    kv_tokens_min: int


@dataclass(frozen=True, slots=True)
class UnloadSpan:
    """Free what is held."""


@dataclass(frozen=True, slots=True)
class ReportSpanLoaded:
    """Tell the coordinator what is held."""

    held: HeldSpan


@dataclass(frozen=True, slots=True)
class ReportLoadFailed:
    """Tell the coordinator why its span is not held."""

    allocation_epoch: int
    code: StatusCode
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReportHopBroken:
    """Tell the coordinator that a neighbour cannot be reached."""

    neighbour_id: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class ReportDrainAsked:
    """Tell the coordinator that this node wants to leave, and how long it waits."""

    reason: str
    limit_ms: int


@dataclass(frozen=True, slots=True)
class ReportDrained:
    """Tell the coordinator that nothing runs here any more."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process."""

    code: int
    reason: Reason


DataEffect = Dial | Send | SendToGateway
EngineEffect = ReserveKv | ReleaseKv | RewindKv | SubmitRows | Draft | LoadSpan | UnloadSpan
ReportEffect = (
    ReportSpanLoaded | ReportLoadFailed | ReportHopBroken | ReportDrainAsked | ReportDrained
)
Effect = DataEffect | EngineEffect | ReportEffect | Exit
