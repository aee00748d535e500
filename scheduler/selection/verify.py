"""Whether a route keeps every promise, by code that shares nothing with those who choose it."""

from collections.abc import Mapping

from plait.types import LayerSpan, NodeId, Route
from scheduler.selection.candidates import Candidate, Query


def route_violations(
    candidates: Mapping[NodeId, Candidate], query: Query, route: Route
) -> list[str]:
    """What is wrong with `route`, in words; empty where nothing is.

    Cover of all layers in order, spans that their nodes hold, KV on every stage, the incarnation
    that is attached, no node twice.
    """
    wrong: list[str] = []
    at = 0
    seen: set[NodeId] = set()
    for stage in route:
        span: LayerSpan = stage.span
        if span.start != at:
            wrong.append(f"{stage.node_id} starts at layer {span.start}, expected {at}")
        at = span.end
        if stage.node_id in seen:
            wrong.append(f"{stage.node_id} stands in the chain twice")
        seen.add(stage.node_id)
        holder = candidates.get(stage.node_id)
        if holder is None:
            wrong.append(f"{stage.node_id} is not there")
            continue
        if stage.incarnation != holder.incarnation:
            wrong.append(f"{stage.node_id} is attached as another incarnation")
        if not (holder.span.start <= span.start and span.end <= holder.span.end):
            wrong.append(f"{stage.node_id} holds {holder.span}, not {span}")
        if holder.kv_tokens_free < query.kv_tokens:
            wrong.append(f"{stage.node_id} has room for {holder.kv_tokens_free} tokens only")
    if at != query.spec.num_layers:
        wrong.append(f"the chain ends at layer {at} of {query.spec.num_layers}")
    return wrong
