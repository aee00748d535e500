"""Weights, buffers and KV share what may be used, and nothing more."""

from dataclasses import replace

import pytest

from node.engine.memory import CACHED_ROWS_MAX, MemoryPlan, plan_memory, workspace_bytes
from plait.errors import OverloadedError
from plait.types import DType, KvDtype, LayerSpan, ModelSpec
from tests.unit.engine.kit import tiny_model

SPEC = replace(
    tiny_model("llama-tied").spec, hidden_size=512, intermediate_size=2048, vocab_size=32_000
)
MIB = 1 << 20
ROW = SPEC.hidden_size * 4


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
    rows_bytes = SPEC.embedding_params * 4 if span.start == 0 and span != SPEC.whole else 0
    return (
        SPEC.weight_bytes(span, DType.FLOAT32)
        - rows_bytes
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
    rows_bytes = CACHED_ROWS_MAX * ROW
    assert plan(SPEC, span, needed_bytes(span) + rows_bytes + 100 * slot).kv_tokens == 356
    assert plan(SPEC, span, 1 << 40).kv_tokens == 4096
    assert plan(SPEC, span, 1 << 40, kv_tokens_max=100).kv_tokens == 256


def test_a_first_stage_keeps_rows_and_not_the_table() -> None:
    span = LayerSpan(0, 2)
    roomy = plan(SPEC, span, 1 << 40)
    assert roomy.cached_rows == CACHED_ROWS_MAX
    table_bytes = SPEC.embedding_params * 4
    assert roomy.weight_bytes == (
        SPEC.weight_bytes(span, DType.FLOAT32) - table_bytes + CACHED_ROWS_MAX * ROW
    )
    assert plan(SPEC, LayerSpan(1, 2), 1 << 40).cached_rows is None


def test_rows_are_kept_as_far_as_memory_goes() -> None:
    span = LayerSpan(0, 2)
    tight = plan(SPEC, span, needed_bytes(span) + 5 * ROW)
    assert tight.cached_rows == 5 and tight.kv_tokens == 256


def test_both_ends_of_a_tied_model_share_the_table() -> None:
    whole = SPEC.whole
    table_once = SPEC.weight_bytes(whole, DType.FLOAT32)
    packed = plan(SPEC, whole, needed_bytes(whole) + 7 * ROW)
    assert packed.cached_rows == 7 and packed.weight_bytes == table_once + 7 * ROW
    plain = plan(SPEC, whole, needed_bytes(whole) + 7 * ROW, packs=False)
    assert plain.cached_rows is None and plain.weight_bytes == table_once


def test_slots_of_int8_are_more() -> None:
    span = LayerSpan(0, 2)
    usable = needed_bytes(span) + 64 * MIB
    slot = SPEC.kv_bytes_per_token(2, DType.FLOAT32, KvDtype.INT8)
    native, small = (
        plan_memory(
            SPEC,
            span,
            DType.FLOAT32,
            usable_bytes=usable,
            kv_tokens_min=256,
            kv_tokens_max=1 << 30,
            step_tokens_max=64,
            packs_weights=True,
            kv_dtype=kv_dtype,
        )
        for kv_dtype in KvDtype
    )
    left = usable - small.weight_bytes - small.workspace_bytes
    assert small.kv_tokens == left // slot > 3 * native.kv_tokens
