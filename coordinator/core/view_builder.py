"""Builds the snapshot that dashboard, CLI and admin door show."""

from coordinator.core.machines import NodeState
from coordinator.core.outlook import outlook
from coordinator.core.request_view import request_view
from coordinator.core.standby import standby_reason
from coordinator.core.state import CoreState, NodeRecord
from coordinator.core.view import (
    STANDBY,
    CountersView,
    DepartedView,
    MeasuredHopView,
    ModelView,
    NetworkView,
    NodeView,
    PlanChangeView,
    PlanView,
    RequestView,
)
from plait.types import GuessTotals, ModelSpec, NodeId, StepTotals
from plait.types.weights import WeightTotals
from scheduler.cost import StageCost, stage_cost


def build_view(
    state: CoreState, now_ms: int, network_id: str, software_version: str
) -> NetworkView:
    """The whole network at `now_ms`. Changes nothing."""
    hops = _hops(state)
    open_requests = [request_view(r, now_ms) for r in state.requests.values()]
    requests = (*open_requests, *reversed(state.ended))
    return NetworkView(
        network_id=network_id,
        software_version=software_version,
        now_ms=now_ms,
        nodes=tuple(_node_view(state, n, hops.get(n.node_id, ())) for n in state.nodes.values()),
        models=tuple(_model_view(state, spec) for spec in state.models.values()),
        requests=requests,
        num_queued=state.num_queued(),
        plan=_plan_view(state),
        counters=_counters_view(state),
        departed=_departed(state, requests),
        changes=_changes(state, now_ms),
    )


def _departed(state: CoreState, requests: tuple[RequestView, ...]) -> tuple[DepartedView, ...]:
    """Those that a chain, or one that was considered, still names."""
    named = {hop.node_id for request in requests for hop in request.route}
    named |= {
        node_id
        for request in requests
        for decision in request.decisions
        for chain in decision.considered
        for node_id in chain.chain
    }
    return tuple(
        DepartedView(node_id=node_id, display_name=name)
        for node_id, name in state.departed.items()
        if node_id in named and node_id not in state.nodes
    )


def _node_view(state: CoreState, node: NodeRecord, hops: tuple[MeasuredHopView, ...]) -> NodeView:
    profile, load, held = node.profile, node.load, node.held
    spec = state.models.get(node.model_id) if node.model_id is not None else None
    if spec is None and state.models:
        spec = next(iter(state.models.values()))
    cost = stage_cost(profile, spec) if profile is not None and spec is not None else None
    standby = standby_reason(state, node)
    shown: str = node.state if standby is None else STANDBY
    return NodeView(
        node_id=node.node_id,
        display_name=node.display_name,
        state="paused" if node.paused else shown,
        incarnation=node.incarnation,
        model_id=node.model_id,
        span=(node.span.start, node.span.end) if node.span is not None else None,
        span_reason=node.paused or standby or node.span_reason,
        device_kind=profile.device_kind if profile is not None else "",
        device_name=profile.device_name if profile is not None else "",
        memory_bytes=profile.memory_bytes if profile is not None else 0,
        weight_bytes=held.weight_bytes if held is not None else 0,
        read_bytes=held.read_bytes if held is not None else 0,
        compute_dtype=profile.compute_dtype if profile is not None else "",
        decode_layer_ms=cost.layer_ms if cost is not None else 0.0,
        prefill_layer_ms_per_token=cost.prefill_layer_ms_per_token if cost is not None else 0.0,
        decode_layer_ms_per_extra=cost.layer_ms_per_extra if cost is not None else 0.0,
        head_ms=cost.head_ms if cost is not None else 0.0,
        step_overhead_ms=cost.overhead_ms if cost is not None else 0.0,
        coordinator_rtt_ms=profile.coordinator_rtt_ms if profile is not None else 0.0,
        up_bytes_per_s=profile.up_bytes_per_s if profile is not None else 0.0,
        down_bytes_per_s=profile.down_bytes_per_s if profile is not None else 0.0,
        kv_tokens_max=node.kv_tokens_max,
        kv_tokens_reserved=node.kv_tokens_reserved,
        num_requests=len(node.pipelines),
        stage_ms=load.stage_ms if load is not None else 0.0,
        predicted_stage_ms=_predicted_ms(node, spec, cost),
        held_up_ms=node.held_up_ms,
        tokens_total=load.tokens_total if load is not None else 0,
        sent_bytes_total=load.sent_bytes_total if load is not None else 0,
        frames_dropped_total=load.frames_dropped_total if load is not None else 0,
        **_weights(node),
        load_phase=node.load_phase,
        load_done_bytes=node.load_done_bytes,
        load_total_bytes=node.load_total_bytes,
        last_error=node.last_error,
        attached_ms=node.attached_ms,
        neighbour_rtt_ms=tuple((hop.neighbour_id, hop.rtt_ms) for hop in hops),
        decode_error_percent=node.calibration.decode.error_percent,
        prefill_error_percent=node.calibration.prefill.error_percent,
        steps=load.steps if load is not None else StepTotals(),
        guesses=load.guesses if load is not None else GuessTotals(),
        draft=load.draft if load is not None else None,
        hops=hops,
    )


def _predicted_ms(node: NodeRecord, spec: ModelSpec | None, cost: StageCost | None) -> float:
    """Of a step of the node's span for what runs there now; 0.0 where it holds none."""
    if cost is None or spec is None or node.span is None:
        return 0.0
    return cost.decode_ms(
        len(node.span),
        max(1, len(node.pipelines)),
        is_first=node.span.start == 0,
        is_last=node.span.end == spec.num_layers,
    )


def _weights(node: NodeRecord) -> dict[str, int]:
    """Weights over the network, by the view's names."""
    totals = node.load.weights if node.load is not None else WeightTotals()
    return {
        "weights_hub_bytes_total": totals.hub_bytes,
        "weights_neighbour_bytes_total": totals.neighbour_bytes,
        "weights_served_bytes_total": totals.served_bytes,
        "weights_rejected_total": totals.rejected_chunks,
        "weights_refused_total": totals.refused_requests,
    }


def _hops(state: CoreState) -> dict[NodeId, tuple[MeasuredHopView, ...]]:
    """What each node measured of the ways to others."""
    links = state.links
    bytes_per_s = links.measured_bytes_per_s()
    hops: dict[NodeId, list[MeasuredHopView]] = {}
    for (a, b), rtt_ms in sorted(links.measured().items()):
        if not (_is_measured(state, a) and _is_measured(state, b)):
            continue
        hops.setdefault(a, []).append(
            MeasuredHopView(
                neighbour_id=b,
                rtt_ms=rtt_ms,
                predicted_rtt_ms=links.predicted_rtt_ms(a, b),
                bytes_per_s=bytes_per_s.get((a, b), 0.0),
                predicted_bytes_per_s=links.predicted_bytes_per_s(a, b),
            )
        )
    return {node_id: tuple(own) for node_id, own in hops.items()}


def _is_measured(state: CoreState, node_id: NodeId) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.profile is not None


def _model_view(state: CoreState, spec: ModelSpec) -> ModelView:
    serving = [
        n.span
        for n in state.nodes.values()
        if n.state is NodeState.SERVING and n.model_id == spec.model_id and n.span is not None
    ]
    ahead = outlook(state, spec)
    return ModelView(
        model_id=spec.model_id,
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        context_tokens_max=spec.context_tokens_max,
        is_ready=not ahead.missing,
        demand_share=state.demand.shares()[spec.model_id],
        is_demand_given=state.demand.given is not None,
        replicas_min=state.demand.replicas_min.get(spec.model_id, 1),
        replicas_per_layer=tuple(
            sum(span.start <= layer < span.end for span in serving)
            for layer in range(spec.num_layers)
        ),
        missing=tuple((span.start, span.end) for span in ahead.missing),
        missing_bytes=ahead.short_bytes,
        advice=ahead.advice,
        lack=ahead.lack,
    )


def _plan_view(state: CoreState) -> PlanView | None:
    plan = state.planning.in_force
    if plan is None:
        return None
    return PlanView(
        epoch=state.planning.in_force_epoch,
        solver=plan.solver,
        status=plan.status,
        objective_tokens_per_s=plan.objective_tokens_per_s,
        bound_tokens_per_s=plan.bound_tokens_per_s,
        solve_ms=plan.solve_ms,
        warnings=plan.warnings,
        moved_nodes=plan.moved_nodes,
        moved_bytes=plan.moved_bytes,
        fetched_bytes=plan.fetched_bytes,
    )


def _changes(state: CoreState, now_ms: int) -> tuple[PlanChangeView, ...]:
    return tuple(
        PlanChangeView(
            age_ms=now_ms - change.at_ms,
            epoch=change.epoch,
            cause=change.cause,
            tokens_per_s=change.tokens_per_s,
            moved_nodes=change.moved_nodes,
            moved_bytes=change.moved_bytes,
            fetched_bytes=change.fetched_bytes,
        )
        for change in state.planning.changes.newest()
    )


def _counters_view(state: CoreState) -> CountersView:
    counters = state.counters
    return CountersView(
        requests_submitted=counters.requests_submitted,
        requests_finished=counters.requests_finished,
        requests_failed=counters.requests_failed,
        requests_refused=counters.requests_refused,
        requests_cancelled=counters.requests_cancelled,
        routes_opened=counters.routes_opened,
        routes_broken=counters.routes_broken,
        tokens_generated=counters.tokens_generated,
        events_ignored=counters.events_ignored,
        nodes_moved=counters.nodes_moved,
        weight_bytes_moved=counters.weight_bytes_moved,
        weight_bytes_fetched=counters.weight_bytes_fetched,
    )
