"""The node's state machines as data. A missing cell is our bug and raises."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from plait.errors import IllegalTransition


class NodeState(StrEnum):
    """Life of one incarnation."""

    JOINING = "joining"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    GONE = "gone"


class NodeTrigger(StrEnum):
    """What moves it."""

    ASSIGN = "assign"
    LOADED = "loaded"
    EMPTIED = "emptied"
    DRAIN = "drain"
    LEAVE = "leave"


NODE_TABLE: Final[Mapping[tuple[NodeState, NodeTrigger], NodeState]] = {
    (NodeState.JOINING, NodeTrigger.ASSIGN): NodeState.LOADING,
    (NodeState.JOINING, NodeTrigger.EMPTIED): NodeState.JOINING,
    (NodeState.JOINING, NodeTrigger.DRAIN): NodeState.DRAINING,
    (NodeState.JOINING, NodeTrigger.LEAVE): NodeState.GONE,
    (NodeState.LOADING, NodeTrigger.ASSIGN): NodeState.LOADING,
    (NodeState.LOADING, NodeTrigger.LOADED): NodeState.SERVING,
    (NodeState.LOADING, NodeTrigger.EMPTIED): NodeState.JOINING,
    (NodeState.LOADING, NodeTrigger.DRAIN): NodeState.DRAINING,
    (NodeState.LOADING, NodeTrigger.LEAVE): NodeState.GONE,
    (NodeState.SERVING, NodeTrigger.ASSIGN): NodeState.LOADING,
    (NodeState.SERVING, NodeTrigger.EMPTIED): NodeState.JOINING,
    (NodeState.SERVING, NodeTrigger.DRAIN): NodeState.DRAINING,
    (NodeState.SERVING, NodeTrigger.LEAVE): NodeState.GONE,
    (NodeState.DRAINING, NodeTrigger.DRAIN): NodeState.DRAINING,
    (NodeState.DRAINING, NodeTrigger.LEAVE): NodeState.GONE,
}


def next_node_state(state: NodeState, trigger: NodeTrigger) -> NodeState:
    """Raises IllegalTransition for a cell that the table does not have."""
    try:
        return NODE_TABLE[state, trigger]
    except KeyError:
        raise IllegalTransition("node", "self", state, trigger) from None


class SessionState(StrEnum):
    """Life of a request on a stage; ended sessions are forgotten but for their epoch."""

    OPENING = "opening"
    OPEN = "open"
