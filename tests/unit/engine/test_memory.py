"""Weights, buffers and KV share what may be used, and nothing more."""

from dataclasses import replace

import pytest

from node.engine.memory import MemoryPlan, plan_memory, workspace_bytes
from plait.errors import OverloadedError
from plait.types import DType, LayerSpan, ModelSpec
from tests.unit.engine.kit import tiny_model

SPEC = replace(
    tiny_model("llama-tied").spec, hidden_size=512, intermediate_size=2048, vocab_size=32_000
)
MIB = 1 << 20


def plan(
    spec: ModelSpec,
    span: LayerSpan,
    usable_bytes: int,
    *,
    kv_tokens_max: int = 4096,
    packs: bool = True,
) -> MemoryPlan:
    return plan_memory(
        spec,
        span,
        DType.FLOAT32,
        usable_bytes=usable_bytes,
        kv_tokens_min=256,
        kv_tokens_max=kv_tokens_max,
        step_tokens_max=64,
        packs_weights=packs,
    )


def needed_bytes(span: LayerSpan) -> int:
    return (
        SPEC.weight_bytes(span, DType.FLOAT32)
        + workspace_bytes(SPEC, span, DType.FLOAT32, 64)
        + 256 * SPEC.kv_bytes_per_token(len(span), DType.FLOAT32)
    )


def test_too_little_memory_says_how_much_is_missing() -> None:
    span = LayerSpan(0, 2)
    with pytest.raises(OverloadedError, match="need 10 MiB more") as refused:
        plan(SPEC, span, needed_bytes(span) - 10 * MIB)
    assert refused.value.code == "memory_full"
    with pytest.raises(OverloadedError):
        plan(SPEC, span, needed_bytes(span) - 1)


def test_what_remains_is_kv_up_to_the_limit() -> None:
    span = LayerSpan(0, 2)
    slot = SPEC.kv_bytes_per_token(2, DType.FLOAT32)
    assert plan(SPEC, span, needed_bytes(span)).kv_tokens == 256
    assert plan(SPEC, span, needed_bytes(span) + 100 * slot).kv_tokens == 356
    assert plan(SPEC, span, 1 << 40).kv_tokens == 4096
    assert plan(SPEC, span, 1 << 40, kv_tokens_max=100).kv_tokens == 256


def test_a_tied_head_is_packed_only_where_a_copy_fits() -> None:
    whole = SPEC.whole
    copy = SPEC.embedding_params * 4
    tight = plan(SPEC, whole, needed_bytes(whole) + copy - 1)
    assert tight.share_embedding
    assert tight.weight_bytes == SPEC.weight_bytes(whole, DType.FLOAT32)
    roomy = plan(SPEC, whole, needed_bytes(whole) + copy)
    assert not roomy.share_embedding and roomy.kv_tokens == 256
    assert roomy.weight_bytes == tight.weight_bytes + copy
    assert plan(SPEC, whole, 1 << 40, packs=False).weight_bytes == tight.weight_bytes
