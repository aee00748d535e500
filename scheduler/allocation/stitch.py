"""Disjoint chains through spans that nodes hold: what a set of placements can serve."""

from collections import defaultdict
from collections.abc import Mapping

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import ChainRate

Stages = tuple[tuple[NodeId, LayerSpan], ...]
Hops = dict[tuple[NodeId, NodeId], float]


def stitch(
    planner: ChainPlanner, held: Mapping[NodeId, LayerSpan]
) -> list[tuple[Stages, ChainRate]]:
    """Chains over the whole model, node-disjoint, the cheapest first, until none is left.

    A stage runs from where its predecessor ends to the end of its own span.
    """
    free = dict(sorted(held.items()))
    order = sorted(free, key=lambda n: (free[n].end, free[n].start, n))
    hops_ms: Hops = {}
    chains: list[tuple[Stages, ChainRate]] = []
    while True:
        stages = _cheapest(planner, free, order, hops_ms)
        if stages is None:
            return chains
        chains.append((stages, planner.evaluate(stages, held=held)))
        for node_id, _ in stages:
            del free[node_id]
            order.remove(node_id)


def _cheapest(
    planner: ChainPlanner, free: Mapping[NodeId, LayerSpan], order: list[NodeId], hops_ms: Hops
) -> Stages | None:
    """Shortest path over boundaries; a node ends where its span ends, so nodes sorted by end
    (`order`) are a topological order. Equal costs are told apart by what the chains are."""
    best: dict[NodeId, tuple[float, Stages]] = {}
    ending: dict[int, list[NodeId]] = defaultdict(list)
    for node_id in order:
        span, cost = free[node_id], planner.costs[node_id]
        least: tuple[float, Stages] | None = None
        if span.start == 0:
            least = cost.decode_ms(len(span), 1), ((node_id, span),)
        for at in range(max(1, span.start), span.end):
            befores = ending.get(at)
            if befores is None:
                continue
            part = LayerSpan(at, span.end)
            step_ms = cost.decode_ms(len(part), 1)
            for before in befores:
                total, stages = best[before]
                hop = before, node_id
                hop_ms = hops_ms.get(hop)
                if hop_ms is None:
                    hop_ms = hops_ms[hop] = planner.links.hop_ms(before, node_id, planner.hop_bytes)
                total = total + hop_ms + step_ms
                if least is None or total <= least[0]:
                    option = total, (*stages, (node_id, part))
                    least = option if least is None else min(least, option)
        if least is not None:
            best[node_id] = least
            ending[span.end].append(node_id)
    ends = [best[n] for n in ending[planner.spec.num_layers]]
    return min(ends)[1] if ends else None
