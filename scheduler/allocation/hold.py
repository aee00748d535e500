"""A spare that becomes a stage keeps what else it holds, where it has room for both."""

from collections.abc import Mapping
from typing import Final

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.handover import handed_over

WORTH_MIN: Final = 1.0 / 1.1
"""Of what the chain is worth with no more KV given away. A plan that moves nodes has to be worth
a tenth more, so that one which keeps its spares stands."""


def hold_on(
    planner: ChainPlanner, spans: Mapping[NodeId, LayerSpan], chain: Chain
) -> tuple[Chain, dict[NodeId, LayerSpan]]:
    """The chain with less KV on nodes that keep what they hold beside their stages, and what these
    hold: layers that otherwise one node alone would have. `spans` are everybody's in the plan."""
    wide: dict[NodeId, LayerSpan] = {}
    best = chain
    for node_id, _ in chain.stages:
        held = planner.held.get(node_id)
        if held is None or held == spans[node_id] or not held.contains(spans[node_id]):
            continue
        if not _is_needed(spans, held, spans[node_id]):
            continue
        tried = {**spans, **wide, node_id: held}
        parts = handed_over([tried[n] for n in chain.node_ids], planner.spec.num_layers)
        if parts != [span for _, span in chain.stages]:
            continue
        widened = Chain(chain.stages, planner.evaluate(chain.stages, held=tried))
        if widened.score >= WORTH_MIN * chain.score:
            wide[node_id], best = held, widened
    return best, wide


def _is_needed(spans: Mapping[NodeId, LayerSpan], held: LayerSpan, given: LayerSpan) -> bool:
    """Whether a layer that the node would let go of has one other holder at most."""
    return any(
        sum(span.start <= layer < span.end for span in spans.values()) <= 1
        for layer in range(held.start, held.end)
        if not given.start <= layer < given.end
    )
