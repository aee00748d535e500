"""What a model lacks in a pool, in layers and GiB, and what helps: the figures and their words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plait.errors import UnavailableError
from plait.types import DType, LayerSpan, ModelId, ModelSpec, NodeId, NodeProfile, missing_spans
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import role_bytes

MIB: Final = 1 << 20
GIB: Final = 1 << 30
TENTHS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """`missing` are the layers that nobody holds, `short_bytes` the least memory that helps.

    One node with `one_node_bytes` would do, and so would `num_nodes` more of `node_bytes` each;
    None where no such number is known. All three sizes are what `gib` prints, to the byte.
    """

    model_id: ModelId
    missing: tuple[LayerSpan, ...]
    short_bytes: int
    one_node_bytes: int | None = None
    num_nodes: int | None = None
    node_bytes: int | None = None

    @property
    def advice(self) -> str:
        """What the operator can do; doing it is enough."""
        one = self.one_node_bytes
        single = f"with at least {gib(one)}" if one is not None else ""
        if self.num_nodes is not None and self.node_bytes is not None and self.num_nodes > 1:
            several = f"Join {self.num_nodes} more nodes of {gib(self.node_bytes)} each"
            return f"{several}, or one {single}." if single else f"{several}."
        if single:
            return f"Join a node {single}."
        return f"Join nodes; together they need at least {gib(self.short_bytes)}."


def gap_shortage(
    spec: ModelSpec, missing: Sequence[LayerSpan], dtype: DType, kv_tokens: int
) -> Shortage:
    """What is missing where nobody who is there can move: a node for each gap."""
    sizes = [printable_up(span_bytes(spec, span, dtype, kv_tokens)) for span in missing]
    largest = max(sizes, default=0)
    is_one = len(sizes) == 1
    return Shortage(
        model_id=spec.model_id,
        missing=tuple(missing),
        short_bytes=printable_up(sum(sizes)),
        one_node_bytes=largest if is_one else None,
        num_nodes=None if is_one else len(sizes),
        node_bytes=None if is_one else largest,
    )


def span_bytes(spec: ModelSpec, span: LayerSpan, dtype: DType, kv_tokens: int) -> int:
    """Memory that one more node needs to hold `span`: weights, KV and buffers."""
    is_first, is_last = span.start == 0, span.end == spec.num_layers
    layer = spec.layer_bytes(dtype) + kv_tokens * spec.kv_bytes_per_token(1, dtype)
    return len(span) * layer + role_bytes(spec, dtype, is_first=is_first, is_last=is_last)


def shortage_error(
    planner: ChainPlanner,
    free: Sequence[NodeId],
    kept: Mapping[NodeId, LayerSpan],
) -> UnavailableError:
    """The planner's error for a model that `free` nodes cannot complete beside what is `kept`.
    What would help is another question, that `remedy` answers."""
    spec = planner.spec
    missing = missing_spans(list(kept.values()), spec.num_layers)
    room = sum(planner.profiles[n].memory_bytes for n in free)
    nodes = "1 free node" if len(free) == 1 else f"{len(free)} free nodes"
    return UnavailableError(
        f"not enough memory for {spec.model_id}: {layers_text(missing, spec.num_layers)} and do "
        f"not fit on {nodes} with {gib(printable_down(room))} in all",
        reason="not_enough_memory",
    )


def layers_text(missing: Sequence[LayerSpan], num_layers: int) -> str:
    """Names layers that nobody holds."""
    return f"layers {', '.join(str(span) for span in missing)} of {num_layers} have no node"


def gib(num_bytes: int) -> str:
    """Bytes for people, rounded up; printable sizes are printed as they are."""
    size = printable_up(num_bytes)
    if size < GIB:
        return f"{size // MIB} MiB"
    tenths = -(-size * TENTHS // GIB)
    return f"{tenths // TENTHS}.{tenths % TENTHS} GiB"


def printable_up(num_bytes: int) -> int:
    """The smallest size of whole MiB, or from 1 GiB on of tenths of a GiB, that is no less. What
    a person types in after reading it is as much, to the byte."""
    if num_bytes <= GIB - MIB:
        return -(-num_bytes // MIB) * MIB
    tenths = max(TENTHS, num_bytes * TENTHS // GIB)
    while tenths * GIB // TENTHS < num_bytes:
        tenths += 1
    return tenths * GIB // TENTHS


def printable_down(num_bytes: int) -> int:
    """The largest printable size that is no more."""
    if num_bytes < GIB:
        return num_bytes // MIB * MIB
    tenths = -(-num_bytes * TENTHS // GIB)
    while tenths * GIB // TENTHS > num_bytes:
        tenths -= 1
    return tenths * GIB // TENTHS


def widest_dtype(profiles: Sequence[NodeProfile]) -> DType:
    """In which a newcomer may compute: the widest that is seen, float32 where nobody is."""
    widths = sorted((p.compute_dtype for p in profiles), key=lambda d: (d.num_bytes, d))
    return widths[-1] if widths else DType.FLOAT32
