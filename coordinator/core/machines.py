"""The three lifecycles, as tables. Every legal transition in the control plane is here."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from plait.errors import IllegalTransition

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T", bound=StrEnum)


class NodeState(StrEnum):
    """Of one incarnation of a node. GONE is final."""

    JOINING = "joining"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    GONE = "gone"


class NodeTrigger(StrEnum):
    """What moves a node."""

    ASSIGNED = "assigned"
    RESUMED = "resumed"
    LOADED = "loaded"
    LOAD_FAILED = "load_failed"
    UNASSIGNED = "unassigned"
    DRAIN = "drain"
    DRAINED = "drained"
    LOST = "lost"


NODE: Final[Mapping[NodeState, Mapping[NodeTrigger, NodeState]]] = {
    NodeState.JOINING: {
        NodeTrigger.ASSIGNED: NodeState.LOADING,
        NodeTrigger.RESUMED: NodeState.SERVING,
        NodeTrigger.DRAIN: NodeState.DRAINING,
        NodeTrigger.LOST: NodeState.GONE,
    },
    NodeState.LOADING: {
        NodeTrigger.LOADED: NodeState.SERVING,
        NodeTrigger.LOAD_FAILED: NodeState.JOINING,
        NodeTrigger.UNASSIGNED: NodeState.JOINING,
        NodeTrigger.ASSIGNED: NodeState.LOADING,
        NodeTrigger.DRAIN: NodeState.DRAINING,
        NodeTrigger.LOST: NodeState.GONE,
    },
    NodeState.SERVING: {
        NodeTrigger.ASSIGNED: NodeState.LOADING,
        NodeTrigger.UNASSIGNED: NodeState.JOINING,
        NodeTrigger.DRAIN: NodeState.DRAINING,
        NodeTrigger.LOST: NodeState.GONE,
    },
    NodeState.DRAINING: {
        NodeTrigger.DRAINED: NodeState.GONE,
        NodeTrigger.LOST: NodeState.GONE,
    },
    NodeState.GONE: {},
}


class PipelineState(StrEnum):
    """Of one opened route. CLOSED and BROKEN are final."""

    FORMING = "forming"
    READY = "ready"
    DRAINING = "draining"
    CLOSED = "closed"
    BROKEN = "broken"


class PipelineTrigger(StrEnum):
    """What moves a pipeline."""

    FORMED = "formed"
    STAGE_DRAINING = "stage_draining"
    ENDED = "ended"
    BROKE = "broke"


PIPELINE: Final[Mapping[PipelineState, Mapping[PipelineTrigger, PipelineState]]] = {
    PipelineState.FORMING: {
        PipelineTrigger.FORMED: PipelineState.READY,
        PipelineTrigger.STAGE_DRAINING: PipelineState.DRAINING,
        PipelineTrigger.ENDED: PipelineState.CLOSED,
        PipelineTrigger.BROKE: PipelineState.BROKEN,
    },
    PipelineState.READY: {
        PipelineTrigger.STAGE_DRAINING: PipelineState.DRAINING,
        PipelineTrigger.ENDED: PipelineState.CLOSED,
        PipelineTrigger.BROKE: PipelineState.BROKEN,
    },
    PipelineState.DRAINING: {
        PipelineTrigger.FORMED: PipelineState.DRAINING,
        PipelineTrigger.STAGE_DRAINING: PipelineState.DRAINING,
        PipelineTrigger.ENDED: PipelineState.CLOSED,
        PipelineTrigger.BROKE: PipelineState.BROKEN,
    },
    PipelineState.CLOSED: {},
    PipelineState.BROKEN: {},
}


class RequestState(StrEnum):
    """Of one request. FINISHED, FAILED and CANCELLED are final."""

    QUEUED = "queued"
    OPENING = "opening"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RequestTrigger(StrEnum):
    """What moves a request."""

    ROUTED = "routed"
    OPENED = "opened"
    FIRST_TOKEN = "first_token"
    LAST_TOKEN = "last_token"
    BROKE = "broke"
    GAVE_UP = "gave_up"
    CANCEL = "cancel"


REQUEST: Final[Mapping[RequestState, Mapping[RequestTrigger, RequestState]]] = {
    RequestState.QUEUED: {
        RequestTrigger.ROUTED: RequestState.OPENING,
        # The chain broke after its last token had reached the gateway.
        RequestTrigger.LAST_TOKEN: RequestState.FINISHED,
        RequestTrigger.GAVE_UP: RequestState.FAILED,
        RequestTrigger.CANCEL: RequestState.CANCELLED,
    },
    RequestState.OPENING: {
        RequestTrigger.OPENED: RequestState.PREFILL,
        RequestTrigger.BROKE: RequestState.QUEUED,
        RequestTrigger.GAVE_UP: RequestState.FAILED,
        RequestTrigger.CANCEL: RequestState.CANCELLED,
    },
    RequestState.PREFILL: {
        RequestTrigger.FIRST_TOKEN: RequestState.DECODE,
        RequestTrigger.BROKE: RequestState.QUEUED,
        RequestTrigger.GAVE_UP: RequestState.FAILED,
        RequestTrigger.CANCEL: RequestState.CANCELLED,
    },
    RequestState.DECODE: {
        RequestTrigger.LAST_TOKEN: RequestState.FINISHED,
        RequestTrigger.BROKE: RequestState.QUEUED,
        RequestTrigger.GAVE_UP: RequestState.FAILED,
        RequestTrigger.CANCEL: RequestState.CANCELLED,
    },
    RequestState.FINISHED: {},
    RequestState.FAILED: {},
    RequestState.CANCELLED: {},
}


def diagram(table: Mapping[S, Mapping[T, S]]) -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2"]
    lines += [
        f"    {state} --> {target}: {trigger}"
        for state, row in table.items()
        for trigger, target in row.items()
    ]
    return "\n".join(lines)


def advance(name: str, table: Mapping[S, Mapping[T, S]], key: object, state: S, trigger: T) -> S:
    """The next state. Raises IllegalTransition where the table has no such cell."""
    try:
        return table[state][trigger]
    except KeyError:
        raise IllegalTransition(name, key, state, trigger) from None
