"""Disjoint chains through spans that nodes hold: what a set of placements can serve."""

from bisect import bisect_left, insort
from collections.abc import Mapping

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import ChainPlanner, Stages
from scheduler.cost import ChainRate

Way = tuple[float, Stages]
"""Milliseconds of a token until its last stage has run, and the stages."""


def stitch(
    planner: ChainPlanner, held: Mapping[NodeId, LayerSpan]
) -> list[tuple[Stages, ChainRate]]:
    """Chains over the whole model, node-disjoint, the cheapest first, until none is left.

    A stage runs from where its predecessor ends to the end of its own span.
    """
    ways = _Ways(planner, held)
    chains: list[tuple[Stages, ChainRate]] = []
    while (stages := ways.cheapest()) is not None:
        chains.append((stages, planner.evaluate(stages, held=held)))
        ways.take(stages)
    return chains


class _Ways:
    """The shortest way to the end of each node's span, over nodes that are free.

    Whoever is taken only makes others' ways longer: a way with a taken node in it still says how
    long the node's way is at least, and is looked for again when that is too little to tell.
    """

    def __init__(self, planner: ChainPlanner, held: Mapping[NodeId, LayerSpan]) -> None:
        self._num_layers = planner.spec.num_layers
        self._costs = planner.costs
        self._hops = planner.hops
        self._held = held
        self._taken: set[NodeId] = set()
        self._ways: dict[NodeId, Way] = {}
        self._cuts = sorted({span.end for span in held.values()})
        self._ending: dict[int, list[tuple[float, NodeId]]] = {cut: [] for cut in self._cuts}
        """By boundary: nodes whose spans end there, those first that can be left soonest. Of ways
        as long as each other the first one found is kept, in whatever order nodes were given."""
        # A node ends where its span ends, so this order is a topological one.
        for node_id in sorted(held, key=lambda n: (held[n].end, held[n].start, n)):
            self._enter(node_id)

    def cheapest(self) -> Stages | None:
        """The shortest way over all layers; None where there is none."""
        ends = self._ending.get(self._num_layers, [])
        while ends:
            _, node_id = ends[0]
            if not self._is_stale(node_id):
                return self._ways[node_id][1]
            self._refresh(node_id)
        return None

    def take(self, stages: Stages) -> None:
        """These nodes are free no more."""
        for node_id, _ in stages:
            self._leave(node_id)
            self._taken.add(node_id)

    def _way_to(self, node_id: NodeId) -> Way | None:
        """The shortest way to the end of a node's span; None where there is none."""
        span, cost, hops = self._held[node_id], self._costs[node_id], self._hops
        arriving_ms = hops.arriving_ms[node_id]
        found: Way | None = None
        if span.start == 0:
            found = cost.decode_ms(len(span), 1), ((node_id, span),)
        first = bisect_left(self._cuts, max(1, span.start))
        for cut in self._cuts[first : bisect_left(self._cuts, span.end)]:
            part = LayerSpan(cut, span.end)
            step_ms = cost.decode_ms(len(part), 1)
            befores, at = self._ending[cut], 0
            while at < len(befores):
                least_ms, before = befores[at]
                if found is not None and least_ms + arriving_ms + step_ms >= found[0]:
                    break
                if self._is_stale(before):
                    self._refresh(before)
                    continue
                total, stages = self._ways[before]
                total = total + hops.ms(before, node_id) + step_ms
                if found is None or total < found[0]:
                    found = total, (*stages, (node_id, part))
                at += 1
        return found

    def _is_stale(self, node_id: NodeId) -> bool:
        """Whether a node on its way is taken."""
        taken = self._taken
        return any(stage in taken for stage, _ in self._ways[node_id][1])

    def _refresh(self, node_id: NodeId) -> None:
        self._leave(node_id)
        self._enter(node_id)

    def _enter(self, node_id: NodeId) -> None:
        way = self._way_to(node_id)
        if way is not None:
            self._ways[node_id] = way
            insort(self._ending[self._held[node_id].end], (self._least_ms(node_id), node_id))

    def _leave(self, node_id: NodeId) -> None:
        ending = self._ending[self._held[node_id].end]
        del ending[bisect_left(ending, (self._least_ms(node_id), node_id))]

    def _least_ms(self, node_id: NodeId) -> float:
        """Until a node that follows may be reached, or the last layer has run."""
        way_ms = self._ways[node_id][0]
        is_last = self._held[node_id].end == self._num_layers
        return way_ms if is_last else way_ms + self._hops.leaving_ms[node_id]
