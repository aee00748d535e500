"""Who holds which part of a layer: attention heads and columns of the MLP in equal shares.

Shoeybi et al., "Megatron-LM" (2019), section 3: products whose outputs are divided come before
those whose inputs are, so that a layer needs two sums over the ranks and nothing else.
"""

from dataclasses import dataclass, replace
from typing import Final

from plait.errors import ModelError
from plait.models.tensors import EMBEDDING, HEAD
from plait.types import ModelSpec

UNEVEN: Final = "group_uneven"


@dataclass(frozen=True, slots=True)
class Split:
    """One of `num_ranks` ranks, from 0. Rank 0 leads."""

    rank: int
    num_ranks: int

    def part(self, whole: int) -> range:
        """This rank's of `whole` things; the first ranks may have one fewer than the last."""
        begin = whole * self.rank // self.num_ranks
        return range(begin, whole * (self.rank + 1) // self.num_ranks)


@dataclass(frozen=True, slots=True)
class Cut:
    """What a rank needs of a tensor: rows in `rows`, one stretch after the other, of these the
    `columns`; None: all. `is_once`: it is added once, by rank 0; other ranks have zeros there."""

    rows: tuple[range, ...] | None = None
    columns: range | None = None
    is_once: bool = False

    @property
    def is_whole(self) -> bool:
        return self.rows is None and self.columns is None


def require_even(spec: ModelSpec, num_ranks: int) -> None:
    """Raises ModelError, and says how many ranks would do, where ranks could not have equal shares.

    Fewer key and value heads than ranks are copied, where each is copied as often.
    """
    what = _uneven(spec, num_ranks)
    if what is None:
        return
    fitting = [str(n) for n in range(1, spec.num_heads + 1) if _uneven(spec, n) is None]
    raise ModelError(
        f"{what} of {spec.model_id} cannot be divided among {num_ranks} ranks: "
        f"{', '.join(fitting)} would do",
        reason=UNEVEN,
    )


def rank_spec(spec: ModelSpec, split: Split) -> ModelSpec:
    """The shape of what a rank holds: its heads, its columns of the MLP, its rows of the LM head.
    Raises ModelError as `require_even`."""
    require_even(spec, split.num_ranks)
    return replace(
        spec,
        num_heads=spec.num_heads // split.num_ranks,
        num_kv_heads=max(1, spec.num_kv_heads // split.num_ranks),
        intermediate_size=spec.intermediate_size // split.num_ranks,
        vocab_size=len(split.part(spec.vocab_size)),
    )


def cut_of(spec: ModelSpec, split: Split, name: str) -> Cut:
    """The part of tensor `name` of the whole model `spec` that a rank multiplies with.

    Norms and routers are whole on every rank; so are biases behind a sum, but for their values.
    """
    if name in (EMBEDDING, HEAD):
        return Cut(rows=(split.part(spec.vocab_size),))
    kind, leaf = name.rsplit(".", 2)[-2:]
    if kind in ("o_proj", "down_proj"):
        if leaf == "bias":
            return Cut(is_once=True)
        inner = spec.num_heads * spec.head_dim if kind == "o_proj" else spec.intermediate_size
        return Cut(columns=split.part(inner))
    return Cut(rows=_rows(spec, split, kind if leaf != "sinks" else leaf))


def _rows(spec: ModelSpec, split: Split, kind: str) -> tuple[range, ...] | None:
    heads = split.part(spec.num_heads)
    queries = _times(heads, spec.head_dim)
    keys = _times(_kv_heads(spec, heads), spec.head_dim)
    inner = split.part(spec.intermediate_size)
    match kind:
        case "q_proj":
            return (queries,)
        case "k_proj" | "v_proj":
            return (keys,)
        case "qkv_proj":
            q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
            return (queries, _moved(keys, q_width), _moved(keys, q_width + kv_width))
        case "gate_proj" | "up_proj":
            return (inner,)
        case "gate_up_proj":
            return (inner, _moved(inner, spec.intermediate_size))
        case "sinks":
            return (heads,)
        case _:
            return None


def _kv_heads(spec: ModelSpec, heads: range) -> range:
    """Those that these queries look at."""
    group = spec.num_heads // spec.num_kv_heads
    return range(heads.start // group, (heads.stop - 1) // group + 1)


def _uneven(spec: ModelSpec, num_ranks: int) -> str | None:
    """What cannot be shared equally; None: nothing."""
    if spec.num_heads % num_ranks:
        return f"{spec.num_heads} attention heads"
    if spec.num_kv_heads % num_ranks and num_ranks % spec.num_kv_heads:
        return f"{spec.num_kv_heads} key and value heads"
    if spec.intermediate_size % num_ranks:
        return f"{spec.intermediate_size} MLP columns"
    return None


def _times(things: range, width: int) -> range:
    return range(things.start * width, things.stop * width)


def _moved(rows: range, by: int) -> range:
    return range(rows.start + by, rows.stop + by)
