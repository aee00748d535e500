"""What must hold after every event. Written from the promises, for tests and simulation."""

from collections import Counter

from coordinator.core.machines import NodeState, PipelineState, RequestState
from coordinator.core.state import CoreState
from plait.errors import PlaitError
from plait.types import NodeId


class BrokenInvariant(PlaitError):  # noqa: N818 - a bug, not an operating error
    """The core broke a promise: our bug."""


def check(state: CoreState) -> None:
    """Raise BrokenInvariant for the first promise that does not hold."""
    _check_nodes(state)
    _check_pipelines(state)
    _check_requests(state)


def _hold(condition: bool, promise: str) -> None:
    if not condition:
        raise BrokenInvariant(promise)


def _node_holds(condition: bool, node_id: NodeId, promise: str) -> None:
    """There are many nodes: words are put together only where they are needed."""
    if not condition:
        raise BrokenInvariant(f"{node_id} {promise}")


def _check_nodes(state: CoreState) -> None:
    reserved: Counter[NodeId] = Counter()
    carried: Counter[NodeId] = Counter()
    for pipeline in state.pipelines.values():
        for stage in pipeline.route:
            reserved[stage.node_id] += pipeline.kv_tokens
            carried[stage.node_id] += 1
    _hold(set(reserved) <= set(state.nodes), "a route runs over a node that is gone")
    for node_id, node in state.nodes.items():
        _node_holds(node.state is not NodeState.GONE, node_id, "is gone but kept")
        _node_holds(
            node.kv_tokens_reserved == reserved[node_id], node_id, "has other KV reserved than open"
        )
        _node_holds(
            len(node.pipelines) == carried[node_id], node_id, "counts its pipelines wrongly"
        )
        if node.state is NodeState.SERVING:
            held = node.held
            _node_holds(held is not None, node_id, "serves nothing")
            _node_holds(
                held is not None and (held.model_id, held.span) == (node.model_id, node.span),
                node_id,
                "serves another span than it holds",
            )
            _node_holds(
                node.kv_tokens_reserved <= node.kv_tokens_max,
                node_id,
                "has more KV reserved than there is",
            )
        elif node.state is not NodeState.DRAINING:
            _node_holds(not node.pipelines, node_id, "does not serve but carries requests")


def _check_pipelines(state: CoreState) -> None:
    for pipeline in state.pipelines.values():
        _hold(
            pipeline.state not in (PipelineState.CLOSED, PipelineState.BROKEN),
            f"pipeline {pipeline.pipeline_id} is over but kept",
        )
        at = 0
        seen: set[NodeId] = set()
        for stage in pipeline.route:
            node = state.nodes[stage.node_id]
            _hold(node.incarnation == stage.incarnation, f"{stage.node_id}: another incarnation")
            _hold(
                node.held is not None
                and node.held.model_id == pipeline.model_id
                and node.held.span.contains(stage.span),
                f"{stage.node_id} runs layers it does not hold",
            )
            _hold(stage.span.start == at, f"pipeline {pipeline.pipeline_id} has a gap")
            _hold(stage.node_id not in seen, f"{stage.node_id} stands twice in a chain")
            seen.add(stage.node_id)
            at = stage.span.end
        num_layers = state.models[pipeline.model_id].num_layers
        _hold(at == num_layers, f"pipeline {pipeline.pipeline_id} ends at layer {at}")
        request = state.requests.get(pipeline.request_id)
        _hold(
            request is not None
            and request.pipeline_id == pipeline.pipeline_id
            and request.epoch == pipeline.epoch,
            f"pipeline {pipeline.pipeline_id} carries no request",
        )


def _check_requests(state: CoreState) -> None:
    queued: Counter[str] = Counter()
    for queue in state.queues.values():
        queued.update(queue)
    _hold(all(count == 1 for count in queued.values()), "a request is queued twice")
    for request_id, request in state.requests.items():
        is_queued = request.state is RequestState.QUEUED
        _hold(is_queued == (request_id in queued), f"{request_id}: state and queue differ")
        _hold(is_queued == (request.pipeline_id is None), f"{request_id}: state and chain differ")
        _hold(is_queued or request.pipeline_id in state.pipelines, f"{request_id}: no such chain")
        _hold(request.num_attempts <= state.limits.attempts_max, f"{request_id}: too many attempts")
        _hold(
            request.state
            not in (RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED),
            f"{request_id} has ended but is kept",
        )
    _hold(set(queued) <= set(state.requests), "an ended request is queued")
