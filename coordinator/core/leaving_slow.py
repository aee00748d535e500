"""Running requests leave a chain that has become much slower than it was when it was chosen."""

from typing import Final

from coordinator.core.machines import RequestState
from coordinator.core.routing import find_route, make_query
from coordinator.core.settle import move_request_away
from coordinator.core.state import CoreState, NodeRecord, PipelineRecord
from scheduler.cost import stage_cost

SLOW: Final = 4.0
"""So many times what was expected of a token is not borne for long."""
GAIN_MIN: Final = 2.0
"""Another chain has to be so much quicker: the prompt and all tokens so far are run again."""


def leave_if_slow(state: CoreState, node: NodeRecord) -> None:
    """After a heartbeat of the node: move what has waited for it for too long, if there is a chain
    that is worth it. Nobody is punished: prices keep others away."""
    if _excess_ms(state, node) <= 0.0:
        return
    for pipeline_id in list(node.pipelines):
        pipeline = state.pipelines[pipeline_id]
        request = state.requests[pipeline.request_id]
        decision = request.decisions[-1].decision if request.decisions else None
        if request.state is not RequestState.DECODE or decision is None:
            continue
        token_ms = decision.token_ms + _chain_excess_ms(state, pipeline)
        if token_ms <= SLOW * decision.token_ms:
            pipeline.slow_since_ms = None
            continue
        if pipeline.slow_since_ms is None:
            pipeline.slow_since_ms = state.now_ms
        if state.now_ms - pipeline.slow_since_ms < state.limits.slow_patience_ms:
            continue
        query = make_query(state, state.models[request.model_id], request)
        found = find_route(state, request, query)
        if found is not None and GAIN_MIN * found.token_ms < token_ms:
            move_request_away(state, request)


def _chain_excess_ms(state: CoreState, pipeline: PipelineRecord) -> float:
    nodes = [state.nodes[s.node_id] for s in pipeline.route if s.node_id in state.nodes]
    return sum(_excess_ms(state, node) for node in nodes)


def _excess_ms(state: CoreState, node: NodeRecord) -> float:
    """What a step of the node takes now beyond what it measured of itself, with as many requests as
    it has, and what it waits for the process to run."""
    if node.profile is None or node.load is None or node.held is None:
        return 0.0
    spec = state.models.get(node.held.model_id)
    if spec is None or not node.pipelines:
        return 0.0
    span = node.held.span
    nominal_ms = stage_cost(node.profile, spec).decode_ms(
        len(span),
        max(1, node.load.num_requests),
        is_first=span.start == 0,
        is_last=span.end == spec.num_layers,
    )
    return node.held_up_ms + max(0.0, node.load.stage_ms - nominal_ms)
