"""What the node's parts ask of each other. The engine never sees a neighbour, a text or a clock;
transport and agent never see a tensor. Everything here is plain data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from node.core.effects import Exit, ReportEffect
from node.core.events import DrawnToken, Event
from node.core.messages import GatewayMessage, LinkMessage
from plait.types import (
    DType,
    HeldSpan,
    KvDtype,
    LayerSpan,
    LayerTiming,
    ModelId,
    ModelSource,
    ModelSpec,
    NodeId,
    Reason,
    RequestId,
    RouteTicket,
    SamplingParams,
    StepTotals,
    TokenLogprob,
)
from plait.wire.telemetry import TelemetryReading

MEASURE_S: Final = 1.8
"""Of steps that are timed: of a device, and of a layer of each model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What the engine's device can do. Bytes, bytes/s, FLOP/s, all measured."""

    device_kind: str
    device_name: str
    memory_bytes: int
    memory_bytes_per_s: float
    flops_per_s: float
    compute_dtype: DType
    kv_dtype: KvDtype = KvDtype.NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOpen:
    """A request on this stage. `span` is the part of the held span that it runs.

    It may grow to `kv_tokens` slots. `prefix` names its first blocks, each by all that comes before
    its end too; they are filed under `cache_path`, which tells what they were computed from, and
    the first `cached_blocks` of them may be taken from the cache. A smaller `admission` was there
    earlier and gives no slots to a later one, the same on all stages. Its rows travel for
    `travel_ms` in all to this stage and on from it (0: no way off, or not yet known). `sampling` is
    set on the last stage only. `penalty_prompt_ids` are the prompt's distinct ids,
    `penalty_generated_ids` what was generated before this epoch, in order; both empty unless a
    penalty, or for the latter a constraint, is on.
    """

    request_id: RequestId
    epoch: int
    span: LayerSpan
    kv_tokens: int
    wire_dtype: DType
    prefix: tuple[bytes, ...] = ()
    cached_blocks: int = 0
    cache_path: bytes = b""
    admission: int = 0
    travel_ms: float = 0.0
    sampling: SamplingParams | None = None
    penalty_prompt_ids: tuple[int, ...] = ()
    penalty_generated_ids: tuple[int, ...] = ()


class StageWork:
    """Rows to run for one sequence: token ids on the first stage, hidden states on the others.

    `hidden` is row-major little endian (num_tokens, hidden_size) in `dtype`. `position` is the
    first row's place in the sequence. `sample` asks the last stage for a token after the last row.
    `block_name` names the last block that is complete, where the sequence's opening did not.
    `drafted_ids`: tokens of all rows but the first, where these are guesses. Guesses do not count
    for blocks, and the next work takes the place of those that were wrong: it may begin there.
    """

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
        token_ids: Sequence[int] | None = None,
        hidden: bytes | memoryview | None = None,
        dtype: DType = DType.FLOAT32,
        sample: bool = False,
        block_name: bytes | None = None,
        drafted_ids: tuple[int, ...] = (),
    ) -> None:
        self.request_id = request_id
        self.epoch = epoch
        self.position = position
        self.num_tokens = num_tokens
        self.token_ids = token_ids
        self.hidden = hidden
        self.dtype = dtype
        self.sample = sample
        self.block_name = block_name
        self.drafted_ids = drafted_ids

    @property
    def is_decode(self) -> bool:
        """Whether these rows are one token, and guesses behind it."""
        return self.num_tokens == 1 + len(self.drafted_ids)


class StageResult:
    """What a step made of rows of a sequence: hidden rows in the wire dtype, or a token, or an
    error.

    `position` and `num_tokens` tell which: parts of a StageWork, or several of them, may have
    shared a step. A drawn token's own place in the sequence is `position + num_tokens`. `accepted`
    are guesses that were right and come before it; those that were wrong are not in `num_tokens`.
    """

    __slots__ = (
        "accepted",
        "epoch",
        "error",
        "hidden",
        "logprob",
        "num_tokens",
        "position",
        "request_id",
        "sample",
        "token_id",
        "top_logprobs",
    )

    def __init__(
        self,
        request_id: RequestId,
        epoch: int,
        position: int,
        num_tokens: int,
        *,
        hidden: bytes | None = None,
        sample: bool = False,
        accepted: Sequence[DrawnToken] = (),
        token_id: int | None = None,
        logprob: float | None = None,
        top_logprobs: tuple[TokenLogprob, ...] = (),
        error: Reason | None = None,
    ) -> None:
        self.request_id = request_id
        self.epoch = epoch
        self.position = position
        self.num_tokens = num_tokens
        self.hidden = hidden
        self.sample = sample
        self.accepted = accepted
        self.token_id = token_id
        self.logprob = logprob
        self.top_logprobs = top_logprobs
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's counters for heartbeats and telemetry. `kv_tokens_reserved` are slots in use,
    what is only cached not counted."""

    kv_tokens_max: int
    kv_tokens_reserved: int
    num_sequences: int
    stage_ms: float
    tokens_total: int
    queue_tokens: int
    steps_total: int
    steps: StepTotals = field(default_factory=StepTotals)


ResultSink = Callable[[list[StageResult]], None]
LoadProgress = Callable[[str, int, int], None]
"""Called with (phase, done bytes, total bytes); phase is "fetching" or "loading"."""


class EngineHost(Protocol):
    """The engine in its own thread. Methods without `async` never block the event loop."""

    def start(self, sink: ResultSink) -> None:
        """Start the thread. `sink` runs on the caller's event loop with each step's results."""
        ...

    async def stop(self) -> None:
        """Free the device and end the thread."""
        ...

    async def measure_device(self) -> DeviceReport:
        """A short real benchmark of the device: usable memory, bandwidth, matmul rate."""
        ...

    async def measure_layer(self, spec: ModelSpec) -> LayerTiming:
        """Decode and prefill steps of one randomly initialised layer of this model's shape."""
        ...

    async def load(
        self,
        spec: ModelSpec,
        source: ModelSource,
        span: LayerSpan,
        *,
        allocation_epoch: int,
        kv_tokens_min: int,
        progress: LoadProgress,
    ) -> HeldSpan:
        """Read the span's tensors, and only these, and build the stage; replaces what was held.

        Raises WeightsError (corrupt, missing, wrong shape), ModelError, OverloadedError (memory).
        """
        ...

    async def unload(self) -> None:
        """Free the span."""
        ...

    def open(self, sequence: SequenceOpen) -> int:
        """Admit a sequence; returns how many tokens of its prompt are in the cache and need not
        run. It gets slots as it grows; where its seniors need them, its next result is the error
        PREEMPTED. Raises OverloadedError(reason="kv_full") where it could never
        have them all."""
        ...

    def rewind(self, request_id: RequestId, epoch: int, position: int) -> None:
        """Forget rows from `position` on, a block's first: they come again. Results of earlier ones
        may still come."""
        ...

    def close(self, request_id: RequestId, epoch: int) -> None:
        """Free this epoch and older ones of the request; idempotent."""
        ...

    def submit(self, work: StageWork) -> None:
        """Queue rows for a step; the result reaches the sink. Works of a sequence keep order."""
        ...

    def stats(self) -> EngineStats: ...


class TelemetrySource(Protocol):
    """Where the telemetry publisher takes its figures from."""

    def reading(self) -> TelemetryReading:
        """The figures of this moment. Called about once a second; never blocks."""
        ...


class Inbox(Protocol):
    """The way into the node's core."""

    def post(self, event: Event) -> None:
        """Hand in one event from the event loop's thread; its effects are performed at once."""
        ...


class Signed(Protocol):
    """A payload and its signature."""

    @property
    def payload(self) -> bytes: ...

    @property
    def signature(self) -> bytes: ...


class TicketCheck(Protocol):
    """Accepts each ticket once, by the right sender, for this node and what it holds."""

    def verify(
        self,
        ticket: Signed,
        *,
        stage_index: int,
        held_model: ModelId | None,
        sender_node_id: NodeId | None,
        incarnation: int,
    ) -> RouteTicket:
        """Raises TicketError, or OverloadedError when no more tickets can be remembered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStats:
    """Totals of the streams with one neighbour since the start. `rtt_ms` None: not yet known.

    `sequence_errors` counts frames that were dropped for a sequence number seen before.
    """

    neighbour_id: NodeId
    sent_frames: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    sequence_errors: int
    rtt_ms: float | None
    is_up: bool


class Links(Protocol):
    """Streams with neighbours. None of these ever blocks."""

    def dial(self, neighbour_id: NodeId, addresses: Sequence[str]) -> None:
        """Have a stream, whoever dialled it; ends in LinkUp or LinkDown."""
        ...

    def send(self, neighbour_id: NodeId, message: LinkMessage) -> bool:
        """Queue a message; False where there is no stream or its queue is full."""
        ...

    def stats(self) -> tuple[LinkStats, ...]: ...


class Gateway(Protocol):
    """The stream to the gateway; outlives the connection under it."""

    def send(self, message: GatewayMessage) -> bool:
        """Queue a message; False where the queue is full."""
        ...


class NeighbourProbe(Protocol):
    """Measures the way to another node."""

    async def probe(self, neighbour_id: NodeId, addresses: Sequence[str]) -> tuple[float, float]:
        """(round trip in ms, bytes/s towards it). Raises UnavailableError or DeadlineError."""
        ...


class Reporter(Protocol):
    """What the coordinator is told. Never blocks; what cannot be sent now is sent on attaching."""

    def report(self, effect: ReportEffect) -> None: ...

    def report_progress(self, allocation_epoch: int, phase: str, done: int, total: int) -> None:
        """Bytes of the span read so far."""
        ...


class Leaver(Protocol):
    """Ends the process."""

    def leave(self, effect: Exit) -> None: ...


class NodePhase(StrEnum):
    """What a node is doing, for its owner."""

    CONNECTING = "connecting"
    MEASURING = "measuring"
    STANDBY = "standby"
    WAITING = "waiting"
    ASSIGNED = "assigned"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    OFFLINE = "offline"
    PAUSED = "paused"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One line for the owner. `done` is the share loaded, from 0 to 1, while loading."""

    phase: NodePhase
    detail: str
    done: float | None = None


ProgressSink = Callable[[Progress], None]
