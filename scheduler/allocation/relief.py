"""Nodes that complete no chain of their own take a part of a stage from one that holds more."""

from collections.abc import Collection, Iterator, Mapping

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import Chain, ChainPlanner, Stages
from scheduler.handover import handed_over


def relieved(
    planner: ChainPlanner,
    chain: Chain,
    held: Mapping[NodeId, LayerSpan],
    unused: Collection[NodeId],
) -> Chain:
    """The chain with the nodes of `unused` in it that make it worth more: what is left of a chain
    whose lost node a wide spare stands in for."""
    best = chain
    for index in range(len(chain.stages)):
        node_id = chain.stages[index][0]
        # What was gained at one end of the stage stays while the other is looked at.
        for is_behind in (True, False):
            node_ids = best.node_ids
            at = node_ids.index(node_id)
            free = [n for n in unused if n not in node_ids] if best is not chain else unused
            for stages in _shared(best.stages, at, held, free, is_behind=is_behind):
                parts = handed_over([held[n] for n, _ in stages], planner.spec.num_layers)
                if parts != [span for _, span in stages]:
                    continue
                tried = Chain(stages, planner.evaluate(stages, held=held))
                if tried.score > best.score:
                    best = tried
    return best


def _shared(
    stages: Stages,
    at: int,
    held: Mapping[NodeId, LayerSpan],
    free: Collection[NodeId],
    *,
    is_behind: bool,
) -> Iterator[Stages]:
    """The stage keeps its first layers (`is_behind`) or its last ones; more and more of the others
    go to free nodes that hold just what follows, the widest first."""
    node_id, span = stages[at]
    taken: list[tuple[NodeId, LayerSpan]] = []
    cut = span.end if is_behind else span.start
    while True:
        if is_behind:
            fitting = [n for n in free if held[n].end == cut and held[n].start > span.start]
        else:
            fitting = [n for n in free if held[n].start == cut and held[n].end < span.end]
        if not fitting:
            return
        widest = max(fitting, key=lambda n: (len(held[n]), n))
        if is_behind:
            cut = held[widest].start
            taken.insert(0, (widest, held[widest]))
            own = [(node_id, LayerSpan(span.start, cut)), *taken]
        else:
            cut = held[widest].end
            taken.append((widest, held[widest]))
            own = [*taken, (node_id, LayerSpan(cut, span.end))]
        yield (*stages[:at], *own, *stages[at + 1 :])
