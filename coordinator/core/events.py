"""Everything that can happen to the coordinator. Facts, in the past tense; they carry no time."""

from dataclasses import dataclass

from plait.types import (
    CachedSpan,
    FinishReason,
    HeldSpan,
    ModelId,
    NodeId,
    NodeLoad,
    NodeProfile,
    Reason,
    RequestId,
    Route,
)
from scheduler.allocation.problem import Allocation
from scheduler.allocation.shortage import Shortage
from scheduler.selection.fairness import SloClass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttached:
    """A node's control stream is up. `held` is what it still has loaded when it re-attaches;
    `reuses_prefixes`: later prompts use its KV of an earlier one's beginning; `cached`: weights
    that it has from before; `paused`: why its owner wants it to be given nothing ("": lent)."""

    node_id: NodeId
    incarnation: int
    display_name: str
    addresses: tuple[str, ...]
    held: HeldSpan | None = None
    reuses_prefixes: bool = False
    cached: tuple[CachedSpan, ...] = ()
    paused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfiled:
    """The node measured itself; it can be planned with from now on."""

    profile: NodeProfile
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported:
    """A heartbeat; renews the lease."""

    node_id: NodeId
    incarnation: int
    load: NodeLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoadProgressed:
    """Bytes of the span that have been read."""

    node_id: NodeId
    incarnation: int
    epoch: int
    phase: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoaded:
    """The span is in memory."""

    node_id: NodeId
    incarnation: int
    held: HeldSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoadFailed:
    """The span could not be loaded."""

    node_id: NodeId
    incarnation: int
    epoch: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainAsked:
    """The node, or the operator, wants it to leave in order."""

    node_id: NodeId
    incarnation: int | None
    reason: str
    limit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """Everything that ran on the node has ended."""

    node_id: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetached:
    """The control stream closed."""

    node_id: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLinkChanged:
    """The node's token stream to the gateway came up or went down."""

    node_id: NodeId
    incarnation: int
    is_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourMeasured:
    """Round trip (ms) and bandwidth (bytes/s, 0 if not measured) from a node to another."""

    node_id: NodeId
    neighbour_id: NodeId
    rtt_ms: float
    bytes_per_s: float
    is_reachable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HopBroke:
    """A node lost its stream to a neighbour."""

    node_id: NodeId
    neighbour_id: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSolved:
    """The solver returned; None and a reason where no plan exists or the solver failed.
    `shortages` says of each model that stays uncovered what it lacks and what would help."""

    epoch: int
    allocation: Allocation | None
    reason: Reason | None = None
    shortages: tuple[Shortage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSubmitted:
    """The gateway accepted a request. `key_id` is whose it is, `slo` what it is for,
    `prefix_blocks` chained hashes of the prompt's first blocks. `resumes_epoch`: it was asked
    before, of another process perhaps, and had reached that epoch and `num_generated` tokens."""

    request_id: RequestId
    model_id: ModelId
    prompt_tokens: int
    max_new_tokens: int
    key_id: str
    slo: SloClass = SloClass.INTERACTIVE
    prefix_blocks: tuple[int, ...] = ()
    resumes_epoch: int | None = None
    num_generated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFound:
    """Nodes hold a route of a request that came back, opened before this process began.
    `is_running` False: it is over, or of no use."""

    request_id: RequestId
    epoch: int
    route: Route
    kv_tokens: int
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled:
    """The client went away, with `num_generated` tokens so far."""

    request_id: RequestId
    num_generated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOpened:
    """Every stage has its KV."""

    request_id: RequestId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteBroke:
    """A stage refused, or a chain could not go on, after `num_generated` tokens of all epochs.
    `node_id` is who is blamed, None if unknown."""

    request_id: RequestId
    epoch: int
    node_id: NodeId | None
    reason: Reason
    num_generated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenSent:
    """The first token of this epoch reached the gateway."""

    request_id: RequestId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTokenSent:
    """The generation ended at the last stage, or at the gateway by a stop string."""

    request_id: RequestId
    epoch: int
    finish_reason: FinishReason
    num_generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSessions:
    """How long a node's last sessions were, the oldest first."""

    node_id: NodeId
    sessions_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsRecalled:
    """What an earlier coordinator of this network remembered of nodes, in the order in which it
    heard of them."""

    nodes: tuple[NodeSessions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWeighed:
    """The operator gave a key a weight in the queue; keys of which nothing is said have 1."""

    key_id: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanAsked:
    """The operator wants a fresh plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """The clock reached a deadline that the core asked for."""


Event = (
    NodeAttached
    | NodeProfiled
    | NodeReported
    | NodeLoadProgressed
    | NodeLoaded
    | NodeLoadFailed
    | NodeDrainAsked
    | NodeDrained
    | NodeDetached
    | GatewayLinkChanged
    | NeighbourMeasured
    | HopBroke
    | AllocationSolved
    | RequestSubmitted
    | RouteFound
    | RequestCancelled
    | RouteOpened
    | RouteBroke
    | FirstTokenSent
    | LastTokenSent
    | SessionsRecalled
    | KeyWeighed
    | ReplanAsked
    | Ticked
)
