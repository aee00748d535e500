"""Leaving in order: nothing new for the node, what runs on it ends or moves, then it goes."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import (
    NodeState,
    NodeTrigger,
    PipelineState,
    PipelineTrigger,
    RequestState,
)
from coordinator.core.planning import ask_plan
from coordinator.core.routing import find_route, make_query
from coordinator.core.settle import lose_node, move_request_away
from coordinator.core.state import CoreState, NodeRecord, RequestRecord
from coordinator.core.timers import NodeKey, TimerKind
from plait.types import Reason


def drain_asked(state: CoreState, event: ev.NodeDrainAsked) -> None:
    """Nothing new for the node; what runs on it may end. Its place is planned at once."""
    node = state.nodes.get(event.node_id)
    is_foreign = event.incarnation is not None and (
        node is None or node.incarnation != event.incarnation
    )
    if node is None or is_foreign or node.state is NodeState.DRAINING:
        state.ignore()
        return
    node.may_rejoin = event.incarnation is not None
    state.move_node(node, NodeTrigger.DRAIN)
    node.span_reason = f"draining: {event.reason}"
    for pipeline_id in node.pipelines:
        pipeline = state.pipelines[pipeline_id]
        if pipeline.state is not PipelineState.DRAINING:
            state.move_pipeline(pipeline, PipelineTrigger.STAGE_DRAINING)
    limit_ms = event.limit_ms if event.limit_ms > 0 else state.limits.drain_limit_ms
    moving_ms = min(state.limits.drain_move_ms, limit_ms * 3 // 10)
    node.drain_move_ms = state.now_ms + limit_ms - moving_ms
    until_ms = state.now_ms + limit_ms + state.limits.drain_grace_ms
    state.timers.at(until_ms, TimerKind.DRAIN_LIMIT, node.key)
    state.emit(fx.DrainNode(node_id=node.node_id, incarnation=node.incarnation, limit_ms=limit_ms))
    ask_plan(state)
    _move_on(state, node)


def move_due(state: CoreState, key: NodeKey) -> None:
    """Look again at what still runs on a draining node."""
    node = state.node_at(key)
    if node is not None and node.state is NodeState.DRAINING:
        _move_on(state, node)


def drained(state: CoreState, event: ev.NodeDrained) -> None:
    """The node has nothing left to do, or its limit passed."""
    node = state.node(event.node_id, event.incarnation)
    if node is None:
        return
    if node.state is not NodeState.DRAINING:
        state.ignore()
        return
    _finish(state, node)


def drain_overdue(state: CoreState, key: NodeKey) -> None:
    """The node never said that it is done: what still runs moves to other chains."""
    node = state.node_at(key)
    if node is not None and node.state is NodeState.DRAINING:
        _finish(state, node)


def _move_on(state: CoreState, node: NodeRecord) -> None:
    """Move what would not end in time as soon as another chain has room for it, and everything
    that is left shortly before the limit, so that the node is out within it."""
    last_ms = node.drain_move_ms
    is_late = state.now_ms >= last_ms
    for pipeline_id in list(node.pipelines):
        request = state.requests[state.pipelines[pipeline_id].request_id]
        if not is_late and _ends_by(state, request, last_ms):
            continue
        query = make_query(state, state.models[request.model_id], request)
        if is_late or find_route(state, request, query) is not None:
            move_request_away(state, request)
    if node.pipelines and not is_late:
        next_ms = min(last_ms, state.now_ms + state.limits.drain_look_ms)
        state.timers.at(next_ms, TimerKind.DRAIN_MOVE, node.key)


def _ends_by(state: CoreState, request: RequestRecord, when_ms: int) -> bool:
    """Whether its last token should be there, going by what its chain was chosen for; not where
    that was wrong: it should have been there by now."""
    decision = request.decisions[-1].decision if request.decisions else None
    if decision is None:
        return False
    began_ms = request.first_token_ms if request.first_token_ms is not None else state.now_ms
    lead_ms = 0.0 if request.state is RequestState.DECODE else decision.ttft_ms
    end_ms = began_ms + lead_ms + request.max_new_tokens * decision.token_ms
    return state.now_ms < end_ms <= when_ms


def _finish(state: CoreState, node: NodeRecord) -> None:
    reason = Reason(code="drained", message=f"{node.node_id} has left in order")
    lose_node(state, node, reason, trigger=NodeTrigger.DRAINED)
