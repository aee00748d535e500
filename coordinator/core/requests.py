"""Events of requests: submitted, opened, first and last token, broken, cancelled, overdue."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import PipelineTrigger, RequestState, RequestTrigger
from coordinator.core.planning import replan_asked
from coordinator.core.resuming import come_back, lose_found
from coordinator.core.routing import remember_prefix
from coordinator.core.settle import break_pipeline, end_request, wait_for_turn
from coordinator.core.state import CoreState, RequestRecord
from coordinator.core.timers import TimerKind
from coordinator.core.waiting import arrive, is_patience_over, look_again, refusal
from plait.types import FinishReason, PipelineId, Reason, RequestId
from scheduler.selection.fairness import cost_tokens


def submitted(state: CoreState, event: ev.RequestSubmitted) -> None:
    """Queue a request, or refuse it at once."""
    if event.request_id in state.requests:
        state.ignore()
        return
    state.counters.requests_submitted += 1
    refusal = _refusal(state, event)
    if refusal is not None:
        state.counters.count_error(refusal.code)
        state.emit(
            fx.EndRequest(
                request_id=event.request_id, finish_reason=FinishReason.ERROR, reason=refusal
            )
        )
        return
    request = RequestRecord(
        request_id=event.request_id,
        model_id=event.model_id,
        key_id=event.key_id,
        prompt_tokens=event.prompt_tokens,
        max_new_tokens=event.max_new_tokens,
        submitted_ms=state.now_ms,
        slo=event.slo,
        prefix_blocks=event.prefix_blocks[: state.limits.prefix_blocks_max],
    )
    state.requests[event.request_id] = request
    if event.resumes_epoch is not None:
        come_back(state, request, event.resumes_epoch, event.num_generated)
    arrive(state, request)
    note_demand(state, request)
    state.queues[event.model_id].append(event.request_id)
    state.timers.at(
        state.now_ms + state.limits.request_limit_ms, TimerKind.REQUEST_LIMIT, event.request_id
    )
    wait_for_turn(state, request)


def note_demand(state: CoreState, request: RequestRecord) -> None:
    """What models are asked for changes what they should have of the network."""
    limits, demand = state.limits, state.demand
    new_tokens = min(request.max_new_tokens, limits.expected_new_tokens)
    demand.ask(request.model_id, cost_tokens(request.prompt_tokens, new_tokens), state.now_ms)
    if demand.is_departed(state.now_ms, patience_ms=limits.demand_patience_ms):
        demand.plan()
        replan_asked(state)


def _refusal(state: CoreState, event: ev.RequestSubmitted) -> Reason | None:
    spec = state.models.get(event.model_id)
    if spec is None:
        served = ", ".join(state.models)
        return Reason(
            code="model_not_found",
            message=f"{event.model_id} is not served here; served: {served}",
        )
    if event.prompt_tokens < 1 or event.max_new_tokens < 1:
        return Reason(
            code="invalid_argument", message="a request needs a prompt and room for one new token"
        )
    if event.prompt_tokens + event.max_new_tokens > spec.context_tokens_max:
        return Reason(
            code="context_exceeded",
            message=f"{event.prompt_tokens} + {event.max_new_tokens} tokens exceed the context of "
            f"{spec.context_tokens_max}",
        )
    if state.num_queued() >= state.limits.queue_max:
        return Reason(
            code="queue_full",
            message=f"{state.limits.queue_max} requests wait already; try again later",
        )
    return None


def cancelled(state: CoreState, event: ev.RequestCancelled) -> None:
    """The client went away."""
    request = state.requests.get(event.request_id)
    if request is None:
        state.ignore()
        return
    request.num_generated = max(request.num_generated, event.num_generated)
    end_request(state, request, RequestTrigger.CANCEL, FinishReason.CANCELLED)


def route_opened(state: CoreState, event: ev.RouteOpened) -> None:
    """Every stage has its KV."""
    request = state.running(event.request_id, event.epoch)
    if request is None:
        return
    if request.state is not RequestState.OPENING:
        state.ignore()
        return
    _opened(state, request)


def _opened(state: CoreState, request: RequestRecord) -> None:
    assert request.pipeline_id is not None
    state.move_request(request, RequestTrigger.OPENED)
    state.move_pipeline(state.pipelines[request.pipeline_id], PipelineTrigger.FORMED)
    state.counters.routes_opened += 1
    state.timers.at(
        state.now_ms + state.limits.prefill_limit_ms, TimerKind.PREFILL_LIMIT, request.pipeline_id
    )


def route_broke(state: CoreState, event: ev.RouteBroke) -> None:
    """The chain refused or failed."""
    if lose_found(state, event.request_id, event.epoch):
        return
    request = state.running(event.request_id, event.epoch)
    if request is None or request.pipeline_id is None:
        return
    request.num_generated = max(request.num_generated, event.num_generated)
    break_pipeline(state, state.pipelines[request.pipeline_id], event.node_id, event.reason)


def first_token(state: CoreState, event: ev.FirstTokenSent) -> None:
    """Prefill is over. A token proves that the route was opened, whatever was lost."""
    request = state.running(event.request_id, event.epoch)
    if request is None:
        return
    if request.state is RequestState.DECODE:
        state.ignore()
        return
    _advance_to_decode(state, request)


def _advance_to_decode(state: CoreState, request: RequestRecord) -> None:
    if request.state is RequestState.OPENING:
        _opened(state, request)
    if request.state is RequestState.PREFILL:
        state.move_request(request, RequestTrigger.FIRST_TOKEN)
        remember_prefix(state, request)
        for stage in request.last_route:
            state.touched[stage.node_id] = None
    if request.first_token_ms is None:
        request.first_token_ms = state.now_ms


def last_token(state: CoreState, event: ev.LastTokenSent) -> None:
    """The generation is complete at the gateway, which alone decides that. It may be said after
    its chain broke: then the request waits in the queue, or is on a newer chain, for nothing."""
    request = state.requests.get(event.request_id)
    if request is None or not 1 <= event.epoch <= request.epoch:
        state.ignore()
        return
    request.num_generated = event.num_generated
    if request.state is not RequestState.QUEUED:
        _advance_to_decode(state, request)
        for stage in request.last_route:
            node = state.nodes.get(stage.node_id)
            if node is not None:
                node.num_blames = 0
    end_request(state, request, RequestTrigger.LAST_TOKEN, event.finish_reason)


def open_overdue(state: CoreState, pipeline_id: PipelineId) -> None:
    """The chain never opened."""
    pipeline = state.pipelines.get(pipeline_id)
    if pipeline is None:
        return
    request = state.requests[pipeline.request_id]
    if request.state is RequestState.OPENING:
        reason = Reason(code="open_timeout", message="its chain did not open in time")
        break_pipeline(state, pipeline, None, reason)


def prefill_overdue(state: CoreState, pipeline_id: PipelineId) -> None:
    """No first token in all this time."""
    pipeline = state.pipelines.get(pipeline_id)
    if pipeline is None:
        return
    request = state.requests[pipeline.request_id]
    if request.state is RequestState.PREFILL:
        reason = Reason(code="prefill_timeout", message="its chain gave no first token in time")
        break_pipeline(state, pipeline, None, reason)


def wait_overdue(state: CoreState, request_id: RequestId) -> None:
    """It is time to ask whether it should wait any longer in the queue."""
    request = state.requests.get(request_id)
    if request is None or request.state is not RequestState.QUEUED:
        return
    if state.now_ms < request.look_ms:
        return  # it was queued anew since
    if not is_patience_over(state, request):
        look_again(state, request)
        return
    end_request(state, request, RequestTrigger.GAVE_UP, FinishReason.ERROR, refusal(state, request))


def request_overdue(state: CoreState, request_id: RequestId) -> None:
    """The whole request took too long."""
    request = state.requests.get(request_id)
    if request is None:
        return
    if state.now_ms - request.submitted_ms < state.limits.request_limit_ms:
        return
    reason = Reason(code="deadline_exceeded", message="the request took longer than is allowed")
    end_request(state, request, RequestTrigger.GAVE_UP, FinishReason.ERROR, reason)
