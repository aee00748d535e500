"""Joint rules: the end of one record settles those that depend on it."""

from coordinator.core import effects as fx
from coordinator.core.machines import (
    NodeState,
    NodeTrigger,
    PipelineTrigger,
    RequestState,
    RequestTrigger,
)
from coordinator.core.pipelines import end_pipeline
from coordinator.core.planning import ask_plan
from coordinator.core.request_view import request_view
from coordinator.core.state import CoreState, Loss, NodeRecord, PipelineRecord, RequestRecord
from coordinator.core.timers import TimerKind
from coordinator.core.waiting import look_again, settle_charge
from plait.types import PREEMPTED, FinishReason, NodeId, Reason


def end_request(
    state: CoreState,
    request: RequestRecord,
    trigger: RequestTrigger,
    finish_reason: FinishReason,
    reason: Reason | None = None,
) -> None:
    """The one way a request ends: its chain closes, the client hears it once."""
    if request.state is RequestState.QUEUED:
        state.queues[request.model_id].remove(request.request_id)
        state.must_dispatch = True
    state.move_request(request, trigger)
    if request.pipeline_id is not None:
        pipeline = state.pipelines[request.pipeline_id]
        end_pipeline(state, pipeline, PipelineTrigger.ENDED, finish_reason)
        request.pipeline_id = None
    del state.requests[request.request_id]
    counters = state.counters
    counters.tokens_generated += request.num_generated
    settle_charge(state, request)
    if request.state is RequestState.FINISHED:
        counters.requests_finished += 1
    elif request.state is RequestState.CANCELLED:
        counters.requests_cancelled += 1
    else:
        counters.count_error(reason.code if reason is not None else "")
    state.ended.append(request_view(request, state.now_ms, finish_reason, reason))
    state.emit(
        fx.EndRequest(request_id=request.request_id, finish_reason=finish_reason, reason=reason)
    )


def break_pipeline(
    state: CoreState, pipeline: PipelineRecord, blamed: NodeId | None, reason: Reason
) -> None:
    """A chain cannot go on: its request goes to the head of the queue, away from the blamed. One
    whose KV went to an earlier request does so as well, but for that nobody is to blame."""
    request = state.requests[pipeline.request_id]
    is_preempted = reason.code == PREEMPTED and request.num_preempted < state.limits.preempted_max
    if is_preempted:
        request.epochs_uncounted += 1
        request.num_preempted += 1
        state.counters.routes_moved += 1
    else:
        state.counters.routes_broken += 1
    if request.num_attempts >= state.limits.attempts_max:
        last = Reason(
            code=reason.code,
            message=f"gave up after {request.num_attempts} chains; the last one: {reason.message}",
        )
        end_request(state, request, RequestTrigger.GAVE_UP, FinishReason.ERROR, last)
        return
    end_pipeline(state, pipeline, PipelineTrigger.BROKE, FinishReason.ERROR)
    state.move_request(request, RequestTrigger.BROKE)
    request.pipeline_id = None
    if not is_preempted:
        _avoid(state, request, pipeline, blamed)
    state.queues[request.model_id].append(request.request_id)
    wait_for_turn(state, request)


def move_request_away(state: CoreState, request: RequestRecord) -> None:
    """Off its chain, of which a node leaves, to the head of the queue. Nobody is to blame."""
    assert request.pipeline_id is not None
    pipeline = state.pipelines[request.pipeline_id]
    end_pipeline(state, pipeline, PipelineTrigger.ENDED, FinishReason.CANCELLED)
    state.move_request(request, RequestTrigger.BROKE)
    request.pipeline_id = None
    request.epochs_uncounted += 1
    state.counters.routes_moved += 1
    state.queues[request.model_id].append(request.request_id)
    wait_for_turn(state, request)


def wait_for_turn(state: CoreState, request: RequestRecord) -> None:
    """The request is in the queue from now on; it waits so long and no longer."""
    request.queued_ms = state.now_ms
    request.told = None
    state.must_dispatch = True
    look_again(state, request)


def _avoid(
    state: CoreState, request: RequestRecord, pipeline: PipelineRecord, blamed: NodeId | None
) -> None:
    """Keep the request off the blamed node, or off the whole chain where nobody is blamed; a
    little longer each time, so that a lonely chain is tried again and again."""
    limits = state.limits
    span_ms = min(limits.avoid_max_ms, limits.avoid_ms * 2 ** max(0, request.num_attempts - 1))
    until_ms = state.now_ms + span_ms
    culprits = [blamed] if blamed is not None else [s.node_id for s in pipeline.route]
    for node_id in culprits:
        request.avoid[node_id] = until_ms
    state.timers.at(until_ms, TimerKind.DISPATCH)
    node = state.nodes.get(blamed) if blamed is not None else None
    if node is not None:
        node.num_blames += 1
        rest_ms = min(limits.retry_max_ms, limits.retry_ms * 2 ** (node.num_blames - 1))
        node.rest_until_ms = state.now_ms + rest_ms


def lose_node(
    state: CoreState,
    node: NodeRecord,
    reason: Reason,
    *,
    trigger: NodeTrigger = NodeTrigger.LOST,
    tell: bool = True,
) -> None:
    """The node is gone: chains through it break, its place is planned anew. `tell` evicts it."""
    state.move_node(node, trigger)
    del state.nodes[node.node_id]
    state.remember_name(node)
    state.planning.shortages.clear()  # they were of a pool with this node
    if trigger is NodeTrigger.LOST:
        _remember(state, node)
    state.forget_links(node.node_id)
    sessions_ms = state.lifetimes.record(node.node_id, state.now_ms - node.attached_ms)
    state.emit(fx.RememberSessions(node_id=node.node_id, sessions_ms=sessions_ms))
    for pipeline_id in list(node.pipelines):
        break_pipeline(state, state.pipelines[pipeline_id], node.node_id, reason)
    state.must_dispatch = True
    if tell:
        state.emit(
            fx.EvictNode(
                node_id=node.node_id,
                incarnation=node.incarnation,
                reason=reason,
                may_rejoin=node.may_rejoin,
            )
        )
    ask_plan(state)


def _remember(state: CoreState, node: NodeRecord) -> None:
    """The last to go are the likeliest to return."""
    if node.held is None or not node.may_rejoin:
        return
    state.losses.pop(node.node_id, None)
    state.losses[node.node_id] = Loss(
        name=node.display_name or node.node_id,
        model_id=node.held.model_id,
        span=node.held.span,
        lost_ms=state.now_ms,
    )
    while len(state.losses) > state.limits.losses_max:
        del state.losses[next(iter(state.losses))]


def is_routable(state: CoreState, node: NodeRecord) -> bool:
    """Whether a new route may use the node: serving, measured, heard of lately, and linked to the
    gateway."""
    return (
        node.state is NodeState.SERVING
        and node.profile is not None
        and node.held is not None
        and state.now_ms - node.heard_ms < state.limits.suspect_ms
        and state.gateway_links.get(node.node_id) == node.incarnation
    )
