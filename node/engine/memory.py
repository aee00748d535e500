"""How the usable memory is shared between weights, buffers and the KV cache."""

from dataclasses import dataclass

from plait.errors import OverloadedError
from plait.types import DType, LayerSpan, ModelSpec

_MIB = 1 << 20
_SAMPLED_ROWS = 16
"""Rows of logits that the workspace leaves room for."""

_BASE_WORKSPACE_BYTES = 16 * _MIB
"""Plans, masks and what the math library keeps for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes of weights and buffers, KV slots beside them, and whether a tied head has to use the
    embedding's matrix because a packed copy would not fit."""

    weight_bytes: int
    workspace_bytes: int
    kv_tokens: int
    share_embedding: bool


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
) -> MemoryPlan:
    """Divide `usable_bytes`. Raises OverloadedError(reason="memory_full") and says how many MiB are
    missing where weights, buffers and `kv_tokens_min` slots do not fit."""
    shared_bytes = spec.weight_bytes(span, dtype)
    workspace = workspace_bytes(spec, span, dtype, step_tokens_max)
    slot_bytes = spec.kv_bytes_per_token(len(span), dtype)
    spare = usable_bytes - shared_bytes - workspace - kv_tokens_min * slot_bytes
    if spare < 0:
        missing_mib = -(spare // _MIB)
        raise OverloadedError(
            f"layers {span} of {spec.model_id} need {missing_mib} MiB more than the "
            f"{usable_bytes // _MIB} MiB that may be used: weights {shared_bytes // _MIB} MiB, "
            f"buffers {workspace // _MIB} MiB, {kv_tokens_min} KV slots "
            f"{kv_tokens_min * slot_bytes // _MIB} MiB",
            reason="memory_full",
        )
    is_tied_whole = span == spec.whole and spec.tie_embeddings
    copy_bytes = spec.embedding_params * dtype.num_bytes if is_tied_whole and packs_weights else 0
    share = copy_bytes > spare
    weights = shared_bytes if share else shared_bytes + copy_bytes
    fitting = (usable_bytes - weights - workspace) // slot_bytes
    return MemoryPlan(
        weight_bytes=weights,
        workspace_bytes=workspace,
        kv_tokens=max(kv_tokens_min, min(fitting, kv_tokens_max)),
        share_embedding=share,
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
