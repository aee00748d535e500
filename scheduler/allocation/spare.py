"""What to do with nodes that complete no further chain: replicate spans that others hold."""

from collections.abc import Mapping, Sequence

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import kv_tokens_room
from scheduler.survival import up_share


def replicate(
    planner: ChainPlanner, held: Mapping[NodeId, LayerSpan], free: Sequence[NodeId]
) -> dict[NodeId, LayerSpan]:
    """Spans for `free` nodes: each doubles the weakest held span that fits on it.

    Boundaries stay aligned, so that selection can stitch the copies into any chain, and a lost
    node finds its replacement loaded. Nodes on which no held span fits get none.
    """
    rates: dict[LayerSpan, float] = {}
    for node_id in sorted(held):
        span = held[node_id]
        rates[span] = rates.get(span, 0.0) + _rate(planner, node_id, span)
    given: dict[NodeId, LayerSpan] = {}
    for node_id in sorted(free, key=lambda n: (-planner.profiles[n].memory_bytes, n)):
        fitting = [
            span
            for span in rates
            if kv_tokens_room(planner.profiles[node_id], planner.spec, span)
            >= planner.kv_tokens_min
        ]
        if not fitting:
            continue
        span = min(fitting, key=lambda s: (rates[s], -len(s), s))
        given[node_id] = span
        rates[span] += _rate(planner, node_id, span)
    return given


def _rate(planner: ChainPlanner, node_id: NodeId, span: LayerSpan) -> float:
    """Steps per second of a stage alone, over all the time: spans of nodes that come and go are
    doubled first."""
    cost = planner.costs[node_id]
    step_ms = cost.decode_ms(
        len(span), 1, is_first=span.start == 0, is_last=span.end == planner.spec.num_layers
    )
    return 1e3 / step_ms * up_share(planner.losses.get(node_id, 0.0))
