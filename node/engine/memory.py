"""How the usable memory is shared between weights, buffers and the KV cache."""

from dataclasses import dataclass

from plait.errors import OverloadedError
from plait.types import DType, KvDtype, LayerSpan, ModelSpec

_MIB = 1 << 20
CACHED_ROWS_MAX = 4096
"""Rows of the embedding to keep: all that 50,000 tokens of English text have."""

_SAMPLED_ROWS = 16
"""Rows of logits that the workspace leaves room for."""

_BASE_WORKSPACE_BYTES = 16 * _MIB
"""Plans, masks and what the math library keeps for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes of weights and buffers, KV slots beside them, and rows of the embedding to keep; None
    where it keeps none, or has them in the table of a head that it holds too."""

    weight_bytes: int
    workspace_bytes: int
    kv_tokens: int
    cached_rows: int | None


def plan_memory(
    spec: ModelSpec,
    span: LayerSpan,
    dtype: DType,
    *,
    usable_bytes: int,
    kv_tokens_min: int,
    kv_tokens_max: int,
    step_tokens_max: int,
    packs_weights: bool,
    kv_dtype: KvDtype = KvDtype.NATIVE,
) -> MemoryPlan:
    """Divide `usable_bytes`. Raises OverloadedError(reason="memory_full") and says how many MiB are
    missing where weights, buffers and `kv_tokens_min` slots do not fit.

    The embedding is looked up in the weights' file, but for the rows that are kept, and but for a
    node with both ends of a tied model, whose head is the table.
    """
    is_tied_whole = span == spec.whole and spec.tie_embeddings
    reads_rows = span.start == 0 and (packs_weights or not is_tied_whole)
    row_bytes = spec.hidden_size * dtype.num_bytes
    weights = spec.weight_bytes(span, dtype)
    if reads_rows and not is_tied_whole:
        weights -= spec.embedding_bytes(dtype)
    workspace = workspace_bytes(spec, span, dtype, step_tokens_max)
    slot_bytes = spec.kv_bytes_per_token(len(span), dtype, kv_dtype)
    spare = usable_bytes - weights - workspace - kv_tokens_min * slot_bytes
    if spare < 0:
        missing_mib = -(spare // _MIB)
        raise OverloadedError(
            f"layers {span} of {spec.model_id} need {missing_mib} MiB more than the "
            f"{usable_bytes // _MIB} MiB that may be used: weights {weights // _MIB} MiB, "
            f"buffers {workspace // _MIB} MiB, {kv_tokens_min} KV slots "
            f"{kv_tokens_min * slot_bytes // _MIB} MiB",
            reason="memory_full",
        )
    cached_rows: int | None = None
    if reads_rows:
        cached_rows = min(CACHED_ROWS_MAX, spec.vocab_size, spare // row_bytes)
        weights += cached_rows * row_bytes
    fitting = (usable_bytes - weights - workspace) // slot_bytes
    return MemoryPlan(
        weight_bytes=weights,
        workspace_bytes=workspace,
        kv_tokens=max(kv_tokens_min, min(fitting, kv_tokens_max)),
        cached_rows=cached_rows,
    )


def workspace_bytes(spec: ModelSpec, span: LayerSpan, dtype: DType, step_tokens_max: int) -> int:
    """Room for the activations of one step and for one tensor's copy while loading."""
    q_width = spec.num_heads * spec.head_dim
    row_width = 4 * spec.hidden_size + 3 * q_width + 3 * spec.intermediate_size
    total = _BASE_WORKSPACE_BYTES + step_tokens_max * row_width * max(4, dtype.num_bytes)
    if span.end == spec.num_layers:
        total += _SAMPLED_ROWS * spec.vocab_size * 8
    largest_tensor = max(spec.hidden_size * spec.intermediate_size, 1)
    return total + 2 * largest_tensor * 4
