"""What a plan moves: nodes that load other layers than they hold, and how many bytes that is."""

from collections.abc import Iterable
from dataclasses import dataclass

from plait.types import LayerSpan, ModelSpec
from scheduler.allocation.problem import AllocationProblem, Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """`num_nodes` held layers and hold others, or none, afterwards; `num_layers` and `num_bytes`
    (weights) are read by all nodes together, newcomers too."""

    num_nodes: int
    num_layers: int
    num_bytes: int


def moved(problem: AllocationProblem, placements: Iterable[Placement]) -> Moved:
    """From what is held to `placements`. Layers that a node keeps in memory are not read again."""
    specs = {spec.model_id: spec for spec in problem.models}
    widths = {p.node_id: p.compute_dtype.num_bytes for p in problem.nodes}
    before = {p.node_id: p for p in problem.held if p.node_id in widths}
    after = {p.node_id: p for p in placements}
    num_layers = num_bytes = 0
    for node_id, placement in after.items():
        spec, held = specs[placement.model_id], before.get(node_id)
        kept = held.span if held is not None and held.model_id == placement.model_id else None
        layers, params = _read(spec, placement.span, kept)
        num_layers += layers
        num_bytes += params * widths[node_id]
    return Moved(
        num_nodes=sum(
            node_id not in after
            or (held.model_id, held.span) != (after[node_id].model_id, after[node_id].span)
            for node_id, held in before.items()
        ),
        num_layers=num_layers,
        num_bytes=num_bytes,
    )


def _read(spec: ModelSpec, span: LayerSpan, kept: LayerSpan | None) -> tuple[int, int]:
    """(layers, parameters) of `span` beyond those of `kept`."""
    layers, is_first, is_last = len(span), span.start == 0, span.end == spec.num_layers
    if kept is not None:
        layers -= max(0, min(span.end, kept.end) - max(span.start, kept.start))
        is_first = is_first and kept.start != 0
        is_last = is_last and kept.end != spec.num_layers
    return layers, layers * spec.layer_params + (is_first + is_last) * spec.embedding_params
