"""The queue of a model: who is next, what everybody pays, how long it may take."""

from coordinator.core.machines import RequestState
from coordinator.core.outlook import is_hopeless, outlook
from coordinator.core.state import CoreState, RequestRecord
from coordinator.core.timers import TimerKind
from plait.types import ModelId, Reason, RequestId
from scheduler.selection.fairness import Waiting, cost_tokens, fair_order


def order_queue(state: CoreState, model_id: ModelId) -> list[RequestId]:
    """Requests that wait, who is next first."""
    queue = list(state.queues[model_id])
    if len(queue) < 2:
        return queue
    waiting = [
        Waiting(
            key_id=request.key_id,
            slo=request.slo,
            waited_ms=state.now_ms - request.submitted_ms,
            tokens=_expected_cost(state, request),
            is_resumed=request.epoch > 0,
        )
        for request in map(state.requests.__getitem__, queue)
    ]
    order = fair_order(waiting, state.fairness, ageing_ms=state.limits.ageing_ms)
    return [queue[place] for place in order]


def arrive(state: CoreState, request: RequestRecord) -> None:
    """A key that had nothing open starts no poorer than the poorest that has."""
    active = {r.key_id for r in state.requests.values() if r is not request}
    if request.key_id not in active:
        state.fairness.lift(request.key_id, active)


def charge(state: CoreState, request: RequestRecord) -> None:
    """Its key pays for what is expected, once, however often its chain breaks."""
    if request.charged_tokens == 0:
        request.charged_tokens = _expected_cost(state, request)
        request.charged_weight = state.fairness.weight(request.key_id)
        state.fairness.charge(request.key_id, request.charged_tokens)


def settle_charge(state: CoreState, request: RequestRecord) -> None:
    """It is over: what was not used is given back, what was used beyond is paid, by the weight
    that the key had when it paid."""
    if request.charged_tokens:
        used = cost_tokens(request.prompt_tokens, request.num_generated)
        state.fairness.charge(
            request.key_id, used - request.charged_tokens, weight=request.charged_weight
        )


def expected_waits_ms(state: CoreState, model_id: ModelId) -> list[int]:
    """When the model's open requests should be over, soonest first: the one at position p of the
    queue waits for about the p-th."""
    ends: list[int] = []
    for pipeline in state.pipelines.values():
        request = state.requests[pipeline.request_id]
        decision = request.decisions[-1].decision if request.decisions else None
        if pipeline.model_id != model_id or decision is None:
            continue
        steps = min(request.max_new_tokens, state.limits.expected_new_tokens)
        lead_ms = 0.0 if request.state is RequestState.DECODE else decision.ttft_ms
        began_ms = request.first_token_ms if request.first_token_ms is not None else state.now_ms
        left_ms = began_ms + lead_ms + steps * decision.token_ms - state.now_ms
        ends.append(max(0, round(left_ms)))
    return sorted(ends)


def look_again(state: CoreState, request: RequestRecord) -> None:
    """Ask soon whether waiting is still worth it; at its limit at the latest."""
    limits = state.limits
    latest_ms = request.queued_ms + limits.wait_limit_ms
    request.look_ms = min(latest_ms, state.now_ms + limits.hopeless_wait_ms)
    state.timers.at(request.look_ms, TimerKind.WAIT_LIMIT, request.request_id)


def is_patience_over(state: CoreState, request: RequestRecord) -> bool:
    """Whether the request has waited as long as anybody should: to the limit, or for a while
    where layers have no node and nothing is on its way."""
    if state.now_ms - request.queued_ms >= state.limits.wait_limit_ms:
        return True
    return is_hopeless(state, state.models[request.model_id])


def refusal(state: CoreState, request: RequestRecord) -> Reason:
    """Why it waited for nothing."""
    cause = request.waits_for
    code, said = "span_unavailable", "no chain could serve it"
    if cause is not None:
        code, said = ("kv_full" if cause.code == "kv_full" else code), cause.message
    ahead = outlook(state, state.models[request.model_id])
    if ahead.gaps:
        code, said = ahead.code, f"{request.model_id} cannot be served: {ahead.lack}"
    waited_s = (state.now_ms - request.queued_ms) / 1000
    return Reason(code=code, message=f"waited {waited_s:.0f} s: {said}")


def _expected_cost(state: CoreState, request: RequestRecord) -> int:
    new_tokens = min(request.max_new_tokens, state.limits.expected_new_tokens)
    return cost_tokens(request.prompt_tokens, new_tokens)
