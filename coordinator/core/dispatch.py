"""Phase 2 from the core's side: give waiting requests a chain, in order, as KV allows."""

from coordinator.core import effects as fx
from coordinator.core.machines import NodeState, RequestTrigger
from coordinator.core.neighbours import is_blocked
from coordinator.core.pipelines import open_pipeline
from coordinator.core.settle import end_request, is_routable
from coordinator.core.state import CoreState, NodeRecord, RequestRecord
from plait.types import FinishReason, ModelId, ModelSpec, NodeId, Reason
from scheduler.cost import stage_cost
from scheduler.selection import Admission, Candidate, Query, Verdict, admit


def dispatch(state: CoreState) -> None:
    """Serve each model's queue from its head, if anything changed that could let it move."""
    if not state.must_dispatch:
        return
    state.must_dispatch = False
    for model_id, spec in state.models.items():
        if state.queues[model_id]:
            _serve_queue(state, spec)
    # Ending a request that can never be served frees nothing that others wait for.
    state.must_dispatch = False


def _serve_queue(state: CoreState, spec: ModelSpec) -> None:
    """First come, first served; only a request that rests after a broken chain lets others by."""
    queue = state.queues[spec.model_id]
    looked_past = 0
    for request_id in list(queue):
        request = state.requests[request_id]
        admission = _admit(state, spec, request)
        if admission.choice is not None:
            queue.remove(request_id)
            open_pipeline(state, request, admission.choice.route)
            continue
        assert admission.reason is not None
        if admission.verdict is Verdict.REFUSE:
            end_request(
                state, request, RequestTrigger.GAVE_UP, FinishReason.ERROR, admission.reason
            )
            continue
        request.waits_for = admission.reason
        looked_past += 1
        if admission.reason.code != "rerouting" or looked_past > state.limits.lookahead_max:
            _wait_behind(state, spec.model_id, admission.reason)
            break
    _notify(state, spec.model_id)


def _wait_behind(state: CoreState, model_id: ModelId, reason: Reason) -> None:
    """Whoever stands behind the head waits for the same."""
    for request_id in state.queues[model_id]:
        request = state.requests[request_id]
        if request.waits_for is None:
            request.waits_for = reason


def _notify(state: CoreState, model_id: ModelId) -> None:
    """Tell each waiting client why, once per reason."""
    for position, request_id in enumerate(state.queues[model_id], 1):
        request = state.requests[request_id]
        if request.waits_for is None or request.notified == request.waits_for.code:
            continue
        request.notified = request.waits_for.code
        state.emit(
            fx.NotifyQueued(request_id=request_id, position=position, reason=request.waits_for)
        )


def _admit(state: CoreState, spec: ModelSpec, request: RequestRecord) -> Admission:
    """Try rested nodes first, then all but those that this request avoids."""
    nodes = [
        n for n in state.nodes.values() if n.model_id == spec.model_id and is_routable(state, n)
    ]
    avoided = {n for n, until_ms in request.avoid.items() if until_ms > state.now_ms}
    open_to = [n for n in nodes if n.node_id not in avoided]
    rested = [n for n in open_to if n.rest_until_ms <= state.now_ms]
    admission = _ask(state, spec, request, rested)
    if admission.choice is None and len(rested) < len(open_to):
        admission = _ask(state, spec, request, open_to)
    if admission.choice is not None:
        return admission
    if len(open_to) < len(nodes):
        return Admission(
            verdict=Verdict.QUEUE,
            reason=Reason(code="rerouting", message="its chain broke; another one is tried soon"),
        )
    if admission.verdict is Verdict.REFUSE and _may_recover(state, spec.model_id, nodes):
        return Admission(verdict=Verdict.QUEUE, reason=_waits_for_nodes(admission))
    return admission


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


def _ask(
    state: CoreState, spec: ModelSpec, request: RequestRecord, nodes: list[NodeRecord]
) -> Admission:
    query = Query(
        spec=spec,
        prompt_tokens=request.prompt_tokens,
        new_tokens=min(request.max_new_tokens, state.limits.expected_new_tokens),
        kv_tokens=request.kv_tokens,
        hop_bytes=spec.hidden_size * state.wire_dtype.num_bytes,
    )

    def blocked(a: NodeId, b: NodeId) -> bool:
        return is_blocked(state, a, b)

    has_blocks = bool(state.hop_blocks or state.unreachable)
    return admit(
        [_candidate(spec, n) for n in nodes],
        query,
        state.links,
        is_blocked=blocked if has_blocks else None,
    )


def _candidate(spec: ModelSpec, node: NodeRecord) -> Candidate:
    assert node.profile is not None and node.span is not None
    return Candidate(
        node_id=node.node_id,
        incarnation=node.incarnation,
        span=node.span,
        cost=stage_cost(node.profile, spec),
        kv_tokens_free=node.kv_tokens_max - node.kv_tokens_reserved,
        kv_tokens_max=node.kv_tokens_max,
        num_requests=len(node.pipelines),
        queue_tokens=node.load.queue_tokens if node.load is not None else 0,
        stage_ms=node.load.stage_ms if node.load is not None else 0.0,
    )
