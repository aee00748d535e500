"""Requests that come back after this process, or their client's stream, began anew.

Nodes may still run a route for such a request. It is waited for a little; where all its nodes are
attached again, its KV is entered in the books and it goes on. Else the request starts on another
route, with a higher epoch than any that nodes may know.
"""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import NodeState, PipelineTrigger, RequestState, RequestTrigger
from coordinator.core.state import CoreState, PipelineRecord, RequestRecord
from coordinator.core.timers import TimerKind
from plait.types import FinishReason, ModelId, PipelineId, RequestId


def come_back(
    state: CoreState, request: RequestRecord, resumes_epoch: int, num_generated: int
) -> None:
    """A request that was asked before: hold it while its route may be found."""
    # Its client may have missed the last few epochs, no more of them than there are attempts.
    request.epoch = request.epochs_uncounted = resumes_epoch + state.limits.attempts_max
    request.num_generated = num_generated
    request.hold_until_ms = state.now_ms + state.limits.found_wait_ms
    state.timers.at(request.hold_until_ms, TimerKind.DISPATCH)


def route_found(state: CoreState, event: ev.RouteFound) -> None:
    """A last stage says that it holds a route of the request."""
    request = state.requests.get(event.request_id)
    if request is None or request.state is not RequestState.QUEUED:
        state.ignore()
        return
    if event.epoch > request.epoch:
        request.epochs_uncounted += event.epoch - request.epoch
        request.epoch = event.epoch
    state.must_dispatch = True
    if not event.is_running:
        request.found, request.hold_until_ms = None, 0
        return
    request.found = event
    request.hold_until_ms = max(request.hold_until_ms, state.now_ms + 1)
    go_on_where_found(state, event.request_id)


def look_for_found(state: CoreState, model_id: ModelId) -> None:
    """Nodes may have attached: go on with the routes whose nodes are all here."""
    for request_id in list(state.queues[model_id]):
        request = state.requests[request_id]
        if request.found is None:
            continue
        if not go_on_where_found(state, request_id) and request.hold_until_ms <= state.now_ms:
            _give_up(state, request)


def is_held(state: CoreState, request_id: RequestId) -> bool:
    """Whether the request waits for a route that may be found."""
    return state.requests[request_id].hold_until_ms > state.now_ms


def lose_found(state: CoreState, request_id: RequestId, epoch: int) -> bool:
    """A route that was found has broken before it was gone on with; False where none was."""
    request = state.requests.get(request_id)
    if request is None or request.found is None or request.found.epoch != epoch:
        return False
    _give_up(state, request)
    return True


def go_on_where_found(state: CoreState, request_id: RequestId) -> bool:
    """Enter the route in the books if all its nodes are here and hold what they held."""
    request = state.requests[request_id]
    found = request.found
    assert found is not None, "the caller has looked"
    for stage in found.route:
        node = state.nodes.get(stage.node_id)
        if node is None:
            return False  # it may be on its way
        is_same = node.incarnation == stage.incarnation and node.state is NodeState.SERVING
        if not is_same or node.held is None or node.held.model_id != request.model_id:
            _give_up(state, request)
            return False
        has_room = node.kv_tokens_reserved + found.kv_tokens <= node.kv_tokens_max
        if not node.held.span.contains(stage.span) or not has_room:
            _give_up(state, request)
            return False
    _enter(state, request, found)
    return True


def _enter(state: CoreState, request: RequestRecord, found: ev.RouteFound) -> None:
    """As if it had been opened here, and had given a token."""
    state.queues[request.model_id].remove(request.request_id)
    state.num_pipelines += 1
    pipeline = PipelineRecord(
        pipeline_id=PipelineId(state.num_pipelines),
        request_id=request.request_id,
        epoch=found.epoch,
        model_id=request.model_id,
        route=found.route,
        kv_tokens=found.kv_tokens,
        opened_ms=state.now_ms,
    )
    state.pipelines[pipeline.pipeline_id] = pipeline
    for stage in found.route:
        node = state.nodes[stage.node_id]
        node.pipelines[pipeline.pipeline_id] = None
        node.kv_tokens_reserved += pipeline.kv_tokens
        state.touched[stage.node_id] = None
    request.epoch = request.epochs_uncounted = found.epoch
    request.pipeline_id, request.last_route = pipeline.pipeline_id, found.route
    request.found, request.hold_until_ms, request.waits_for = None, 0, None
    for trigger in (RequestTrigger.ROUTED, RequestTrigger.OPENED, RequestTrigger.FIRST_TOKEN):
        state.move_request(request, trigger)
    request.first_token_ms = state.now_ms
    state.move_pipeline(pipeline, PipelineTrigger.FORMED)
    state.counters.routes_resumed += 1


def _give_up(state: CoreState, request: RequestRecord) -> None:
    """Another route, then; whoever still holds this one lets go of it."""
    found = request.found
    assert found is not None, "the caller has looked"
    request.found, request.hold_until_ms = None, 0
    state.must_dispatch = True
    state.emit(
        fx.CloseRoute(
            request_id=request.request_id,
            epoch=found.epoch,
            pipeline_id=PipelineId(0),
            route=found.route,
            finish_reason=FinishReason.CANCELLED,
        )
    )
