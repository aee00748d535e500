"""Disjoint chains through spans that nodes hold: what a set of placements can serve."""

from collections.abc import Mapping

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import ChainRate

Stages = tuple[tuple[NodeId, LayerSpan], ...]


def stitch(
    planner: ChainPlanner, held: Mapping[NodeId, LayerSpan]
) -> list[tuple[Stages, ChainRate]]:
    """Chains over the whole model, node-disjoint, the cheapest first, until none is left.

    A stage runs from where its predecessor ends to the end of its own span.
    """
    free = dict(sorted(held.items()))
    chains: list[tuple[Stages, ChainRate]] = []
    while True:
        stages = _cheapest(planner, free)
        if stages is None:
            return chains
        chains.append((stages, planner.evaluate(stages, held=held)))
        for node_id, _ in stages:
            del free[node_id]


def _cheapest(planner: ChainPlanner, free: Mapping[NodeId, LayerSpan]) -> Stages | None:
    """Shortest path over boundaries; a node ends where its span ends, so nodes sorted by end are
    a topological order."""
    best: dict[NodeId, tuple[float, Stages]] = {}
    order = sorted(free, key=lambda n: (free[n].end, free[n].start, n))
    for node_id in order:
        span, cost = free[node_id], planner.costs[node_id]
        options: list[tuple[float, Stages]] = []
        if span.start == 0:
            options.append((cost.decode_ms(len(span), 1), ((node_id, span),)))
        for before in order:
            if before not in best or not span.start <= free[before].end < span.end:
                continue
            total, stages = best[before]
            part = LayerSpan(free[before].end, span.end)
            hop_ms = planner.links.hop_ms(before, node_id, planner.hop_bytes)
            step_ms = cost.decode_ms(len(part), 1)
            options.append((total + hop_ms + step_ms, (*stages, (node_id, part))))
        if options:
            best[node_id] = min(options)
    ends = [best[n] for n in order if n in best and free[n].end == planner.spec.num_layers]
    return min(ends)[1] if ends else None
