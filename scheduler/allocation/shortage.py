"""Why a pool cannot hold a model, in layers and GiB, and what helps."""

from collections.abc import Mapping, Sequence
from typing import Final

from plait.errors import UnavailableError
from plait.types import DType, LayerSpan, ModelSpec, NodeId, NodeProfile, missing_spans
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import role_bytes

GIB: Final = 1 << 30


def span_bytes(spec: ModelSpec, span: LayerSpan, dtype: DType, kv_tokens: int) -> int:
    """Memory that one more node needs to hold `span`: weights, KV and buffers."""
    is_first, is_last = span.start == 0, span.end == spec.num_layers
    layer = spec.layer_params * dtype.num_bytes + kv_tokens * spec.kv_bytes_per_token(1, dtype)
    return len(span) * layer + role_bytes(spec, dtype, is_first=is_first, is_last=is_last)


def coverable_layers(planner: ChainPlanner, node_ids: Sequence[NodeId]) -> int:
    """Layers from the first on that the nodes can hold together, less than the model's."""
    spec = planner.spec
    firsts = [n for n in node_ids if planner.cap(n, is_first=True, is_last=False) > 0]
    if not firsts:
        return 0
    # One of them holds the embedding; the head goes with the layers that are missing.
    total = sum(planner.cap(n, is_first=False, is_last=False) for n in node_ids)
    total -= min(_embedding_loss(planner, n) for n in firsts)
    return max(0, min(total, spec.num_layers - 1))


def _embedding_loss(planner: ChainPlanner, node_id: NodeId) -> int:
    plain = planner.cap(node_id, is_first=False, is_last=False)
    return plain - planner.cap(node_id, is_first=True, is_last=False)


def shortage_error(
    planner: ChainPlanner,
    free: Sequence[NodeId],
    kept: Mapping[NodeId, LayerSpan],
) -> UnavailableError:
    """The error for a model that `free` nodes cannot complete beside what is `kept`."""
    spec = planner.spec
    if kept:
        missing = missing_spans(list(kept.values()), spec.num_layers)
    else:
        missing = [LayerSpan(coverable_layers(planner, free), spec.num_layers)]
    dtype = _common_dtype(list(planner.profiles.values()))
    short = sum(span_bytes(spec, span, dtype, planner.kv_tokens_min) for span in missing)
    largest = max((p.memory_bytes for p in planner.profiles.values()), default=0)
    # Whoever comes must at least hold one layer with the embedding or the head.
    ends = (LayerSpan(0, 1), LayerSpan(spec.num_layers - 1, spec.num_layers))
    least = max(span_bytes(spec, span, dtype, planner.kv_tokens_min) for span in ends)
    if any(span.start == 0 or span.end == spec.num_layers for span in missing):
        largest = max(largest, least)
    layers = ", ".join(str(span) for span in missing)
    return UnavailableError(
        f"not enough memory for {spec.model_id}: layers {layers} of {spec.num_layers} fit on none "
        f"of {len(planner.profiles)} nodes, {gib(short)} are missing (weights, "
        f"{planner.kv_tokens_min} KV tokens and buffers). {advice(short, largest)}",
        reason="not_enough_memory",
    )


def advice(short_bytes: int, largest_node_bytes: int) -> str:
    """What helps: so many more nodes of such a size."""
    if largest_node_bytes <= 0:
        return f"Join a node with at least {gib(short_bytes)} for plait."
    count = -(-short_bytes // largest_node_bytes)
    size = max(short_bytes // count, largest_node_bytes) if count > 1 else short_bytes
    nodes = "1 more node" if count == 1 else f"{count} more nodes"
    return f"Join {nodes} of {gib(size)}, or raise the nodes' memory limit."


def gib(num_bytes: int) -> str:
    """Bytes for people; rounded up, so that following the advice is enough."""
    if num_bytes < GIB:
        return f"{-(-num_bytes // (1 << 20))} MiB"
    return f"{-(-num_bytes * 10 // GIB) / 10:.1f} GiB"


def _common_dtype(profiles: Sequence[NodeProfile]) -> DType:
    widths = sorted((p.compute_dtype for p in profiles), key=lambda d: (d.num_bytes, d))
    return widths[0] if widths else DType.BFLOAT16
