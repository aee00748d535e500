"""A span reads its own tensors and no others, and refuses what is broken, by name."""

from collections.abc import Sequence

import pytest
import torch

from node.engine.loader import load_stage
from node.engine.stage import HeldStage
from plait.errors import WeightsError
from plait.models.source import TensorData
from plait.models.tensors import whole_tensor_names
from plait.types import DType, LayerSpan
from tests.unit.engine.kit import CPU, KINDS, NUM_LAYERS, MemorySource, TinyModel, tiny_model


def load(model: TinyModel, source: MemorySource, span: LayerSpan) -> HeldStage:
    return load_stage(
        source,
        model.spec,
        span,
        CPU,
        num_positions=16,
        cached_rows=8,
        progress=lambda _done, _total: None,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("span", [LayerSpan(0, 1), LayerSpan(1, 2), LayerSpan(1, 3)])
def test_only_the_spans_tensors_are_read_and_held(kind: str, span: LayerSpan) -> None:
    model = tiny_model(kind)
    source = model.source()
    stage = load(model, source, span)
    assert sorted(source.read_names) == sorted(whole_tensor_names(model.spec, span))
    assert ("model.embed_tokens.weight" in source.read_names) == (
        span.end == NUM_LAYERS and model.spec.tie_embeddings
    )
    expected = model.spec.weight_bytes(span, DType.FLOAT32)
    if span.start == 0:  # eight rows of the table, and not the table
        expected -= (model.spec.vocab_size - 8) * model.spec.hidden_size * 4
    if model.spec.qk_norm:  # one row of the norm's weight per head in memory
        heads = model.spec.num_heads + model.spec.num_kv_heads
        expected += len(span) * (heads - 2) * model.spec.head_dim * 4
    assert stage.weight_bytes == expected


def test_progress_ends_at_the_total() -> None:
    model = tiny_model("llama")
    source = model.source()
    seen: list[tuple[int, int]] = []
    load_stage(
        source,
        model.spec,
        LayerSpan(0, 2),
        CPU,
        num_positions=16,
        cached_rows=8,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    whole_bytes = source.read_bytes - model.spec.hidden_size * 4  # and one row of the embedding
    assert seen[-1] == (whole_bytes, whole_bytes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    model = tiny_model("llama")
    source = model.source()
    source.tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = value
    load(model, source, LayerSpan(0, 1))
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.down_proj") as refused:
        load(model, source, LayerSpan(1, 2))
    assert refused.value.code == "weights_not_finite"


def test_a_wrong_shape_is_refused() -> None:
    model = tiny_model("llama")
    source = model.source()
    name = "model.layers.0.self_attn.k_proj.weight"
    source.tensors[name] = source.tensors[name].t()
    with pytest.raises(WeightsError, match="k_proj") as refused:
        load(model, source, LayerSpan(0, 1))
    assert refused.value.code == "weights_shape"


def test_a_missing_tensor_is_refused_before_anything_is_read() -> None:
    model = tiny_model("qwen2")
    source = model.source()
    del source.tensors["model.layers.0.self_attn.q_proj.bias"]
    with pytest.raises(WeightsError, match=r"q_proj\.bias"):
        load(model, source, LayerSpan(0, 1))
    assert source.read_names == []


class TruncatedSource(MemorySource):
    """Gives one byte less than a tensor has."""

    def read(self, name: str) -> TensorData:
        whole = super().read(name)
        return TensorData(name=name, dtype=whole.dtype, shape=whole.shape, buffer=whole.buffer[:-1])


class RowlessSource(MemorySource):
    """Gives one byte less than a row has."""

    def read_rows(self, name: str, rows: Sequence[int]) -> TensorData:
        whole = super().read_rows(name, rows)
        return TensorData(name=name, dtype=whole.dtype, shape=whole.shape, buffer=whole.buffer[:-1])


def test_an_embedding_that_cannot_be_read_is_refused_at_load() -> None:
    model = tiny_model("llama")
    with pytest.raises(WeightsError, match="embed_tokens"):
        load(model, RowlessSource(model.spec, model.source().tensors), LayerSpan(0, 1))


def test_a_truncated_tensor_is_refused() -> None:
    model = tiny_model("llama")
    with pytest.raises(WeightsError, match=r"layers\.0\.input_layernorm"):
        load(model, TruncatedSource(model.spec, model.source().tensors), LayerSpan(0, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_become_the_computed_dtype(dtype: torch.dtype) -> None:
    model = tiny_model("llama")
    source = model.source()
    source.tensors = {name: t.to(dtype) for name, t in source.tensors.items()}
    stage = load(model, source, LayerSpan(0, 1))
    rows = stage.embed(range(model.spec.vocab_size))
    assert rows.dtype is torch.float32
    assert torch.equal(rows, source.tensors["model.embed_tokens.weight"].float())
