"""Phase 2 from the core's side: give waiting requests a chain, in order, as KV allows."""

from dataclasses import replace

from coordinator.core import effects as fx
from coordinator.core.machines import NodeState, RequestTrigger
from coordinator.core.neighbours import is_blocked
from coordinator.core.outlook import outlook
from coordinator.core.pipelines import open_pipeline
from coordinator.core.resuming import is_held, look_for_found
from coordinator.core.routing import find_route, make_candidate, make_query, refusals
from coordinator.core.settle import end_request, is_routable
from coordinator.core.state import CoreState, Decided, NodeRecord, RequestRecord
from coordinator.core.told import Told
from coordinator.core.waiting import charge, expected_waits_ms, order_queue
from plait.types import FinishReason, ModelId, ModelSpec, NodeId, Reason, RequestId, Route
from scheduler.selection import Admission, Query, Verdict, admit
from scheduler.selection.decision import Decision


def dispatch(state: CoreState) -> None:
    """Serve each model's queue from its head, if anything changed that could let it move."""
    if not state.must_dispatch:
        return
    state.must_dispatch = False
    for model_id, spec in state.models.items():
        if state.queues[model_id]:
            look_for_found(state, model_id)
            _serve_queue(state, spec)
    # Ending a request that can never be served frees nothing that others wait for.
    state.must_dispatch = False


def _serve_queue(state: CoreState, spec: ModelSpec) -> None:
    """In turn; only a request that rests after a broken chain lets others by."""
    queue = state.queues[spec.model_id]
    looked_past = 0
    order = [r for r in order_queue(state, spec.model_id) if not is_held(state, r)]
    for request_id in order:
        request = state.requests[request_id]
        query = make_query(state, spec, request)
        decision = find_route(state, request, query)
        if decision is not None:
            _serve(state, request, decision.route, decision)
            continue
        admission = _admit(state, spec, request, query)
        if admission.choice is not None:
            _serve(state, request, admission.choice.route, None)
            continue
        assert admission.reason is not None
        if admission.verdict is Verdict.REFUSE:
            end_request(
                state, request, RequestTrigger.GAVE_UP, FinishReason.ERROR, admission.reason
            )
            continue
        _wait(state, request, admission.reason)
        looked_past += 1
        if admission.reason.code != "rerouting" or looked_past > state.limits.lookahead_max:
            _wait_behind(state, spec.model_id, admission.reason)
            break
    if queue:
        _notify(state, spec.model_id, [r for r in order if r in state.requests])


def _serve(
    state: CoreState, request: RequestRecord, route: Route, decision: Decision | None
) -> None:
    state.queues[request.model_id].remove(request.request_id)
    _record(state, request, decision, None)
    charge(state, request)
    open_pipeline(state, request, route)


def _wait(state: CoreState, request: RequestRecord, reason: Reason) -> None:
    if request.waits_for is None or request.waits_for.code != reason.code:
        _record(state, request, None, reason)
    request.waits_for = reason


def _record(
    state: CoreState, request: RequestRecord, decision: Decision | None, reason: Reason | None
) -> None:
    """The last few decisions can be looked at afterwards."""
    refused = refusals(state, request) if decision is None and reason is not None else ()
    epoch = request.epoch + 1 if reason is None else request.epoch
    request.decisions.append(Decided(state.now_ms, decision, reason, epoch, refused))
    del request.decisions[: -state.limits.decisions_max]


def _wait_behind(state: CoreState, model_id: ModelId, reason: Reason) -> None:
    """Whoever stands behind the head waits for the same."""
    for request_id in state.queues[model_id]:
        request = state.requests[request_id]
        if request.waits_for is None:
            request.waits_for = reason


def _notify(state: CoreState, model_id: ModelId, order: list[RequestId]) -> None:
    """Tell each waiting client why, where it stands and about how long; again when that changes."""
    waiting = [r for r in order if state.requests[r].pipeline_id is None]
    waits_ms = expected_waits_ms(state, model_id) if waiting else []
    for position, request_id in enumerate(waiting, 1):
        request = state.requests[request_id]
        if request.waits_for is None:
            continue
        reason, wait_ms = request.waits_for, None
        if reason.code == "kv_full" and position <= len(waits_ms):
            wait_ms = waits_ms[position - 1]
            about_s = max(1, round(wait_ms / 1e3))
            reason = Reason(code=reason.code, message=f"{reason.message}; about {about_s} s")
        now = Told(at_ms=state.now_ms, code=reason.code, position=position, wait_ms=wait_ms)
        if not now.is_news_after(request.told):
            continue
        request.told = now
        state.emit(
            fx.NotifyQueued(
                request_id=request_id, position=position, reason=reason, wait_ms=wait_ms
            )
        )


def _admit(state: CoreState, spec: ModelSpec, request: RequestRecord, query: Query) -> Admission:
    """Why no chain was found: asked of rested nodes first, then of all but those that this
    request avoids."""
    nodes = [
        n for n in state.nodes.values() if n.model_id == spec.model_id and is_routable(state, n)
    ]
    avoided = {n for n, until_ms in request.avoid.items() if until_ms > state.now_ms}
    open_to = [n for n in nodes if n.node_id not in avoided]
    rested = [n for n in open_to if n.rest_until_ms <= state.now_ms]
    admission = _ask(state, query, rested)
    if admission.choice is None and len(rested) < len(open_to):
        admission = _ask(state, query, open_to)
    if admission.choice is not None:
        return admission
    if len(open_to) < len(nodes):
        return Admission(
            verdict=Verdict.QUEUE,
            reason=Reason(code="rerouting", message="its chain broke; another one is tried soon"),
        )
    if admission.verdict is Verdict.REFUSE and _may_recover(state, spec.model_id, nodes):
        return Admission(verdict=Verdict.QUEUE, reason=_waits_for_nodes(admission))
    if admission.reason is not None and admission.reason.code == "layers_missing":
        return replace(admission, reason=_waits_for_layers(state, spec, admission.reason))
    return admission


def _waits_for_layers(state: CoreState, spec: ModelSpec, reason: Reason) -> Reason:
    """The same words as everywhere; nodes that are only silent are still there."""
    lack = outlook(state, spec).lack
    return Reason(code=reason.code, message=f"{spec.model_id}: {lack}") if lack else reason


def _waits_for_nodes(admission: Admission) -> Reason:
    assert admission.reason is not None
    return Reason(code="kv_full", message=f"{admission.reason.message}; more nodes are on the way")


def _may_recover(state: CoreState, model_id: ModelId, routable: list[NodeRecord]) -> bool:
    """Whether nodes of the model are only out for a while, so that nothing is refused for good."""
    usable = {n.node_id for n in routable}
    return any(
        n.model_id == model_id
        and n.node_id not in usable
        and n.state in (NodeState.LOADING, NodeState.SERVING)
        for n in state.nodes.values()
    )


def _ask(state: CoreState, query: Query, nodes: list[NodeRecord]) -> Admission:
    def blocked(a: NodeId, b: NodeId) -> bool:
        return is_blocked(state, a, b)

    has_blocks = bool(state.hop_blocks or state.unreachable)
    return admit(
        [make_candidate(state, n, query.spec) for n in nodes if n.profile is not None],
        query,
        state.links,
        is_blocked=blocked if has_blocks else None,
    )
