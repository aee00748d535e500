"""Opened routes: KV is reserved on every stage when one opens, and given back when it ends."""

from itertools import pairwise

from coordinator.core import effects as fx
from coordinator.core.calibrating import node_cost
from coordinator.core.machines import PipelineTrigger, RequestTrigger
from coordinator.core.state import CoreState, PipelineRecord, RequestRecord
from coordinator.core.timers import TimerKind
from plait.types import DType, FinishReason, PipelineId, Route
from scheduler.wire import hop_dtype


def open_pipeline(state: CoreState, request: RequestRecord, route: Route) -> None:
    """Reserve KV along `route` and send the request on its way, one epoch higher."""
    state.num_pipelines += 1
    pipeline_id = PipelineId(state.num_pipelines)
    request.epoch += 1
    pipeline = PipelineRecord(
        pipeline_id=pipeline_id,
        request_id=request.request_id,
        epoch=request.epoch,
        model_id=request.model_id,
        route=route,
        kv_tokens=request.kv_tokens,
        opened_ms=state.now_ms,
    )
    state.pipelines[pipeline_id] = pipeline
    for stage in route:
        node = state.nodes[stage.node_id]
        node.pipelines[pipeline_id] = None
        node.kv_tokens_reserved += pipeline.kv_tokens
        state.touched[stage.node_id] = None
    state.move_request(request, RequestTrigger.ROUTED)
    request.pipeline_id = pipeline_id
    request.last_route = route
    request.waits_for = None
    request.told = None
    state.timers.at(state.now_ms + state.limits.open_limit_ms, TimerKind.OPEN_LIMIT, pipeline_id)
    state.emit(
        fx.OpenRoute(
            request_id=request.request_id,
            epoch=request.epoch,
            pipeline_id=pipeline_id,
            model_id=request.model_id,
            route=route,
            addresses=tuple(state.nodes[stage.node_id].addresses for stage in route),
            kv_tokens=pipeline.kv_tokens,
            hop_dtypes=_hop_dtypes(state, request, route) if state.is_wire_chosen else (),
        )
    )


def _hop_dtypes(state: CoreState, request: RequestRecord, route: Route) -> tuple[DType, ...]:
    """By what each link carries; what the last stage sends are tokens."""
    spec = state.models[request.model_id]
    chosen: list[DType] = []
    for stage, after in pairwise(route):
        cost = node_cost(state.nodes[stage.node_id], spec)
        chosen.append(
            hop_dtype(
                spec.hidden_size,
                bytes_per_s=state.links.bytes_per_s(stage.node_id, after.node_id),
                stage_ms_per_token=cost.prefill_layer_ms_per_token * len(stage.span),
            )
        )
    return (*chosen, DType.FLOAT32)


def end_pipeline(
    state: CoreState,
    pipeline: PipelineRecord,
    trigger: PipelineTrigger,
    finish_reason: FinishReason,
) -> None:
    """Give the KV back, tell every stage, forget the pipeline."""
    state.move_pipeline(pipeline, trigger)
    del state.pipelines[pipeline.pipeline_id]
    for stage in pipeline.route:
        node = state.nodes.get(stage.node_id)
        # A node that was lost meanwhile has a new record, without this pipeline.
        if node is not None and pipeline.pipeline_id in node.pipelines:
            del node.pipelines[pipeline.pipeline_id]
            node.kv_tokens_reserved -= pipeline.kv_tokens
            state.touched[stage.node_id] = None
    state.must_dispatch = True
    state.emit(
        fx.CloseRoute(
            request_id=pipeline.request_id,
            epoch=pipeline.epoch,
            pipeline_id=pipeline.pipeline_id,
            route=pipeline.route,
            finish_reason=finish_reason,
        )
    )
