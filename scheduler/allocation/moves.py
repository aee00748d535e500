"""What a plan moves: nodes that change what they hold, and weights that are read or fetched."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from plait.types import LayerSpan, ModelId, ModelSpec, NodeId
from scheduler.allocation.problem import AllocationProblem, Placement

CACHED_SHARE: Final = 0.1
"""What a layer counts that is read from a node's own disk, against one that is fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """`num_nodes` held layers and hold others, or none, afterwards; `num_layers` and `num_bytes`
    (weights) are read by all nodes together, newcomers too; `fetched_bytes` are those of them that
    the node has not on its disk."""

    num_nodes: int
    num_layers: int
    num_bytes: int
    fetched_bytes: int

    @property
    def weight(self) -> float:
        """Bytes to fetch, those from the disk for a tenth."""
        return self.fetched_bytes + CACHED_SHARE * (self.num_bytes - self.fetched_bytes)


class CachedLayers:
    """Which layers of which model nodes have on their disks."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._spans: dict[tuple[NodeId, ModelId], list[LayerSpan]] = {}
        for cached in problem.cached:
            key = (cached.node_id, cached.model_id)
            self._spans.setdefault(key, []).append(cached.span)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def of(self, node_id: NodeId, model_id: ModelId) -> list[LayerSpan]:
        """The node's spans of the model."""
        return self._spans.get((node_id, model_id), [])

    def has(self, node_id: NodeId, model_id: ModelId, layer: int) -> bool:
        """Whether the layer, with the embedding or head where it has one, is on the disk."""
        return any(span.start <= layer < span.end for span in self.of(node_id, model_id))


def moved(problem: AllocationProblem, placements: Iterable[Placement]) -> Moved:
    """From what is held to `placements`. Layers that a node keeps in memory are not read again."""
    specs = {spec.model_id: spec for spec in problem.models}
    dtypes = {p.node_id: p.compute_dtype for p in problem.nodes}
    before = {p.node_id: p for p in problem.held if p.node_id in dtypes}
    after = {p.node_id: p for p in placements}
    cached = CachedLayers(problem)
    sizes = {  # of a layer, and of the embedding: a network has few models and dtypes
        (spec.model_id, dtype): (spec.layer_bytes(dtype), spec.embedding_bytes(dtype))
        for spec in problem.models
        for dtype in set(dtypes.values())
    }
    num_layers = num_bytes = fetched_bytes = 0
    for node_id, placement in after.items():
        spec, held = specs[placement.model_id], before.get(node_id)
        kept = held.span if held is not None and held.model_id == placement.model_id else None
        for layer in range(placement.span.start, placement.span.end):
            if kept is not None and kept.start <= layer < kept.end:
                continue
            is_twice = layer == spec.num_layers - 1 and placement.span.start == 0
            own_bytes, end_bytes = sizes[spec.model_id, dtypes[node_id]]
            size_bytes = own_bytes + end_bytes * _num_ends(spec, layer, is_twice=is_twice)
            num_layers += 1
            num_bytes += size_bytes
            if not cached.has(node_id, spec.model_id, layer):
                fetched_bytes += size_bytes
    return Moved(
        num_nodes=sum(
            node_id not in after
            or (held.model_id, held.span) != (after[node_id].model_id, after[node_id].span)
            for node_id, held in before.items()
        ),
        num_layers=num_layers,
        num_bytes=num_bytes,
        fetched_bytes=fetched_bytes,
    )


def _num_ends(spec: ModelSpec, layer: int, *, is_twice: bool) -> int:
    """Embeddings that are read with it: the first layer's, the last one's head. Where one matrix is
    both (`is_twice`: the node holds the first layer too), it is read once."""
    is_last = layer == spec.num_layers - 1
    return (layer == 0) + (is_last and not (is_twice and spec.tie_embeddings))
