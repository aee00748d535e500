"""What a node knows: its own life, its sessions, its counters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from node.core.drafting import Drafting, DraftRecord
from node.core.events import ModelOffered, SpanAssigned
from node.core.kept import KeptRoutes
from node.core.machines import NodeState, SessionState
from node.core.messages import StageOpen
from node.core.speculation import PromptLookups, Proposer, Proposers
from plait.prefixes import BlockNamer
from plait.types import DraftState, GuessTotals, HeldSpan, ModelId, ModelSpec, NodeId, RequestId

SWEEP_MS: Final = 500
"""How often idle sessions, old tickets and limits are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a node's core. Times in milliseconds."""

    prefill_chunk_tokens: int = 128
    sessions_max: int = 1024
    epochs_remembered_max: int = 8_192
    session_idle_ms: int = 120_000
    gateway_grace_ms: int = 75_000
    drain_ms: int = 10_000
    frame_bytes_max: int = 4 * 1024 * 1024
    frame_overhead_bytes: int = 1_024
    drafts_max: int = 0


@dataclass(slots=True)
class Counters:
    """Totals since the start. A frame is dropped for exactly one reason. `trips` of requests that
    begin here brought a token and the guesses before it that were right."""

    frames_duplicate: int = 0
    frames_late: int = 0
    frames_foreign: int = 0
    frames_malformed: int = 0
    tickets_refused: int = 0
    opens_refused: int = 0
    sessions_opened: int = 0
    sessions_finished: int = 0
    sessions_broken: int = 0
    tokens_drawn: int = 0
    trips: int = 0
    tokens_drafted: int = 0
    drafts_accepted: int = 0
    tokens_drafted_by_model: int = 0
    drafts_accepted_by_model: int = 0

    @property
    def guesses(self) -> GuessTotals:
        """Of requests that begin here."""
        return GuessTotals(
            trips=self.trips,
            guessed=self.tokens_drafted,
            accepted=self.drafts_accepted,
            guessed_by_model=self.tokens_drafted_by_model,
            accepted_by_model=self.drafts_accepted_by_model,
        )

    @property
    def frames_dropped(self) -> int:
        return (
            self.frames_duplicate + self.frames_late + self.frames_foreign + self.frames_malformed
        )


class HeldRow(NamedTuple):
    """A first stage's row that waits for guesses to go with it."""

    token_id: int
    block_name: bytes | None


class Session:
    """One request on this stage. `next_position` is the first row not yet taken in, `sent_position`
    the first that the engine has not returned, `start` the first that ran here at all; while it
    `awaits_start`, rows from further on are of a longer prefix that a stage did not have.

    `drafted_ids` are the guesses among the rows taken in last; how many of them were right is known
    when the next rows come. `drafts_max` is how many a frame may hold.

    `namer` names blocks on the first stage; `block_names` are those of rows that the engine has, by
    the position after them. The prompt is kept until its token comes: it may have to run again.
    `drafting` is the `proposer` where the draft model guesses too; `held_row` waits for it.
    """

    __slots__ = (
        "active_ms",
        "awaits_start",
        "block_names",
        "drafted_ids",
        "drafting",
        "drafts_max",
        "epoch",
        "first_id",
        "held_row",
        "is_first",
        "is_last",
        "last_id",
        "namer",
        "next_id",
        "next_position",
        "num_generated",
        "open",
        "position_limit",
        "previous_id",
        "prompt_token_ids",
        "proposer",
        "request_id",
        "row_bytes",
        "row_bytes_max",
        "sent_position",
        "start",
        "state",
        "ticket_end_ms",
        "vocab_size",
    )

    def __init__(
        self, opened: StageOpen, spec: ModelSpec, *, now_ms: int, prompt: Sequence[int]
    ) -> None:
        index, stages = opened.stage_index, opened.stages
        self.request_id = opened.request_id
        self.epoch = opened.epoch
        self.open = opened
        self.state = SessionState.OPENING
        self.is_first = index == 0
        self.is_last = index == len(stages) - 1
        self.previous_id: NodeId | None = None if self.is_first else stages[index - 1].node_id
        self.next_id: NodeId | None = None if self.is_last else stages[index + 1].node_id
        self.first_id = stages[0].node_id
        self.last_id = stages[-1].node_id
        self.row_bytes = opened.arriving_dtype.row_bytes(spec.hidden_size)
        dtypes = opened.hop_dtypes or (opened.wire_dtype,)
        self.row_bytes_max = max(dtype.row_bytes(spec.hidden_size) for dtype in dtypes)
        self.vocab_size = spec.vocab_size
        self.position_limit = min(opened.kv_tokens, spec.context_tokens_max)
        self.next_position = 0
        self.sent_position = 0
        self.start = 0
        self.awaits_start = False
        self.namer: BlockNamer | None = None
        self.block_names: dict[int, bytes] = {}
        self.drafted_ids: tuple[int, ...] = ()
        self.drafts_max = 0
        self.proposer: Proposer | None = None
        self.drafting: Drafting | None = None
        self.held_row: HeldRow | None = None
        self.num_generated = 0
        self.prompt_token_ids = prompt
        self.active_ms = now_ms
        self.ticket_end_ms = now_ms + opened.valid_ms

    @property
    def due_position(self) -> int:
        """Where the next rows begin at the earliest: all guesses of the last ones were wrong."""
        return self.next_position - len(self.drafted_ids)

    @property
    def is_guessing(self) -> bool:
        """Whether rows with guesses are here and not done."""
        return bool(self.drafted_ids) and self.sent_position < self.next_position

    def settle(self, position: int) -> None:
        """It is known where the last rows end: guesses from there on were wrong."""
        if self.drafted_ids:
            self.next_position = self.sent_position = position
            self.drafted_ids = ()

    def touches(self, node_id: NodeId) -> bool:
        """Whether the chain cannot go on without this stage's stream to `node_id`."""
        if node_id in (self.previous_id, self.next_id):
            return True
        if self.is_last and not self.is_first:
            return node_id == self.first_id
        return self.is_first and not self.is_last and node_id == self.last_id


@dataclass(slots=True)
class NodeData:
    """The core's whole state."""

    node_id: NodeId
    incarnation: int
    limits: Limits
    state: NodeState = NodeState.JOINING
    is_attached: bool = False
    is_stopping: bool = False
    models: dict[ModelId, ModelOffered] = field(default_factory=dict)
    held: HeldSpan | None = None
    assigned: SpanAssigned | None = None
    loading_epoch: int | None = None
    drain_end_ms: int | None = None
    gateway_down_ms: int | None = None
    is_gateway_up: bool = False
    frame_bytes_max: int = 0
    sessions: dict[RequestId, Session] = field(default_factory=dict)
    ended: dict[RequestId, int] = field(default_factory=dict)
    kept: KeptRoutes = field(default_factory=KeptRoutes)
    counters: Counters = field(default_factory=Counters)
    swept_ms: int = 0
    proposers: Proposers = field(default_factory=PromptLookups)
    drafts: DraftRecord | None = None
    draft_state: DraftState = DraftState.IDLE
    draft_why: str = ""
    is_draft_final: bool = False

    def spec(self) -> ModelSpec | None:
        """Shape of the model that is held."""
        offer = self.models.get(self.held.model_id) if self.held is not None else None
        return offer.spec if offer is not None else None

    def remember_end(self, request_id: RequestId, epoch: int) -> None:
        """From now on this epoch and older ones of the request are late. The oldest ends go."""
        self.ended[request_id] = max(epoch, self.ended.pop(request_id, 0))
        if len(self.ended) > self.limits.epochs_remembered_max:
            del self.ended[next(iter(self.ended))]
