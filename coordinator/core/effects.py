"""Everything the coordinator can ask the world to do. Orders, in the imperative."""

from dataclasses import dataclass

from plait.types import (
    DType,
    FinishReason,
    LayerSpan,
    ModelId,
    NodeId,
    PipelineId,
    Reason,
    RequestId,
    Route,
)
from scheduler.allocation.problem import AllocationProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveAllocation:
    """Solve in a process of its own; ends in AllocationSolved with the same epoch."""

    epoch: int
    problem: AllocationProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignSpan:
    """Ends in NodeLoaded or NodeLoadFailed."""

    node_id: NodeId
    incarnation: int
    epoch: int
    model_id: ModelId
    span: LayerSpan
    kv_tokens_min: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnassignSpan:
    """Stand by with nothing loaded."""

    node_id: NodeId
    incarnation: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    """Ends in NodeDrained."""

    node_id: NodeId
    incarnation: int
    limit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictNode:
    """Close the node's streams; `may_rejoin` False tells it to exit."""

    node_id: NodeId
    incarnation: int
    reason: Reason
    may_rejoin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeNeighbours:
    """Ends in NeighbourMeasured, one per neighbour."""

    node_id: NodeId
    incarnation: int
    neighbours: tuple[tuple[NodeId, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRoute:
    """Sign a ticket and send the request to its first stage; ends in RouteOpened or RouteBroke.

    `addresses[i]` is where stage i can be dialled; `hop_dtypes[i]` of what it sends on, empty where
    the network has one for all.
    """

    request_id: RequestId
    epoch: int
    pipeline_id: PipelineId
    model_id: ModelId
    route: Route
    addresses: tuple[tuple[str, ...], ...]
    kv_tokens: int
    hop_dtypes: tuple[DType, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRoute:
    """Free the request on every stage; idempotent there."""

    request_id: RequestId
    epoch: int
    pipeline_id: PipelineId
    route: Route
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyQueued:
    """Tell the client that it waits, where (from 1), why, and about how long; `wait_ms` None:
    nobody knows."""

    request_id: RequestId
    position: int
    reason: Reason
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """The request is over: `reason` says what failed when `finish_reason` is ERROR."""

    request_id: RequestId
    finish_reason: FinishReason
    reason: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberSessions:
    """Keep over restarts how long the node's last sessions were, the oldest first."""

    node_id: NodeId
    sessions_ms: tuple[int, ...]


Effect = (
    SolveAllocation
    | AssignSpan
    | UnassignSpan
    | DrainNode
    | EvictNode
    | ProbeNeighbours
    | OpenRoute
    | CloseRoute
    | NotifyQueued
    | EndRequest
    | RememberSessions
)
NodeEffect = AssignSpan | UnassignSpan | DrainNode | EvictNode | ProbeNeighbours
RequestEffect = OpenRoute | CloseRoute | NotifyQueued | EndRequest
