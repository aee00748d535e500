"""Weights that stay in memory as their file has them: its numbers, in its bits."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Quant
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from node.engine.kernels.processor import has_kernels
from node.engine.layouts.coded import CodedWeight, random_coded
from node.engine.layouts.coded_tiles import CodedLinear, coded_linear, fits_tiles
from node.engine.layouts.tiles import TiledLinear
from node.engine.layouts.weights import StackedLinear, StackedWeight, stacked, with_rows
from node.engine.linear import PlainLinear
from node.engine.measure import measure_layer
from plait.models import in_format, load_spec, open_source, resolve, whole_tensor_names
from plait.models.coded import CodedMatrix, CodeKind
from plait.models.gguf_blocks import CODED_QUANTS, coded_from_blocks
from plait.models.layout import expected_shapes
from plait.types import DType, LayerSpan, ModelSource, WeightFormat
from tests.unit.engine.kit import CPU
from tests.unit.engine.opened_model import chain_logits, load, open_dense
from tests.unit.models.tiny import add_shape, gguf_name, tiny_model

WIDTH = 512
SPACE = torch.empty(64, WIDTH)
RANDOM = torch.Generator().manual_seed(5)


def blocks(quant: Quant, num_rows: int, width: int, seed: int = 1) -> NDArray[np.uint8]:
    """Rows of any codes, with small finite scales."""
    rng = np.random.default_rng(seed)
    elements, size = GGML_QUANT_SIZES[quant]
    found = rng.integers(0, 256, (num_rows, width // elements, size), dtype=np.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for at in places.get(quant.name, (0,)):
        scales = rng.normal(0, 2e-4 if "K" in quant.name else 5e-3, (*found.shape[:2], 1))
        found[..., at : at + 2] = scales.astype("<f2").view(np.uint8)
    return found.reshape(num_rows, -1)


def coded(quant: Quant, num_rows: int = 40, seed: int = 1) -> tuple[CodedWeight, Tensor]:
    """A weight, and what it means."""
    rows = blocks(quant, num_rows, WIDTH, seed)
    matrix = coded_from_blocks(rows, quant)
    assert matrix is not None
    weight = CodedWeight.of(matrix, CPU.torch_device)
    return weight, torch.from_numpy(dequantize(rows, quant))


QUANTS = sorted(CODED_QUANTS)


@pytest.mark.parametrize("quant", QUANTS, ids=lambda quant: quant.name)
def test_codes_are_packed_without_loss_and_in_the_files_bytes(quant: Quant) -> None:
    weight, dense = coded(quant)
    assert weight.shape == (40, WIDTH)
    torch.testing.assert_close(weight.dense(3, 9, SPACE[:6]), dense[3:9], atol=0, rtol=0)
    elements, size = GGML_QUANT_SIZES[quant]
    assert weight.weight_bytes <= 1.03 * (40 * WIDTH // elements * size)


@pytest.mark.parametrize("num_rows", [1, 5, 40])
@pytest.mark.parametrize("quant", QUANTS, ids=lambda quant: quant.name)
def test_products_are_those_of_the_dense_weight(quant: Quant, num_rows: int) -> None:
    """Few rows meet the codes, many the dense tile; the last tile is narrower, and padded."""
    weight, dense = coded(quant, 45)
    bias, rows = torch.randn(45, generator=RANDOM), torch.randn(num_rows, WIDTH, generator=RANDOM)
    linear = coded_linear(weight, bias, tile_elements=3 * WIDTH)
    assert isinstance(linear, CodedLinear)
    assert linear.weight_bytes <= 48 / 45 * weight.weight_bytes + 4 * 45
    expected = PlainLinear(dense, bias)
    torch.testing.assert_close(linear(rows), expected(rows), atol=1e-4, rtol=1e-4)
    residual = torch.ones(num_rows, 45)
    torch.testing.assert_close(
        linear.plus(rows, residual), expected.plus(rows, residual), atol=1e-4, rtol=1e-4
    )


def test_groups_that_bytes_do_not_divide_are_made_dense_row_by_row() -> None:
    rng = np.random.default_rng(4)
    matrix = CodedMatrix(
        kind=CodeKind.UINT5,
        codes=rng.integers(0, 32, (6, WIDTH), dtype=np.uint8),
        scale=rng.normal(size=(6, WIDTH // 4)).astype(np.float16),
    )
    weight, rows = CodedWeight.of(matrix, CPU.torch_device), torch.randn(2, WIDTH, generator=RANDOM)
    linear = coded_linear(weight, None, tile_elements=4 * WIDTH)
    assert not fits_tiles(weight) and isinstance(linear, TiledLinear)
    expected = rows @ torch.from_numpy(matrix.dense()).t()
    torch.testing.assert_close(linear(rows), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("num_rows", [2, 200])
def test_floats_of_a_byte_and_zero_points_are_multiplied_as_they_are(num_rows: int) -> None:
    rng, rows = np.random.default_rng(5), torch.randn(num_rows, WIDTH, generator=RANDOM)
    finite = rng.integers(0, 256, (16, WIDTH), dtype=np.uint8) & np.uint8(0xF7)
    scale = rng.normal(size=(16, 2)).astype(np.float32)
    points = rng.integers(1, 16, (16, 2), dtype=np.uint8)
    for matrix in (
        CodedMatrix(kind=CodeKind.FLOAT8, codes=finite, scale=0.01 * scale),
        CodedMatrix(
            kind=CodeKind.UINT4, codes=finite & np.uint8(15), scale=scale, least_codes=points
        ),
    ):
        linear = coded_linear(CodedWeight.of(matrix, CPU.torch_device), None, tile_elements=1)
        assert isinstance(linear, CodedLinear)
        expected = rows @ torch.from_numpy(matrix.dense()).t()
        torch.testing.assert_close(linear(rows), expected, atol=2e-3, rtol=1e-4)


def test_alike_weights_become_one_and_others_are_stacked() -> None:
    first, first_dense = coded(Quant.Q4_K, 8, seed=1)
    second, second_dense = coded(Quant.Q4_K, 4, seed=2)
    third, third_dense = coded(Quant.Q6_K, 6, seed=3)
    one = stacked([first, second])
    assert isinstance(one, CodedWeight)
    both = torch.cat([first_dense, second_dense])
    torch.testing.assert_close(one.dense(0, 12, SPACE[:12]), both, atol=0, rtol=0)
    several = stacked([one, third, torch.ones(2, WIDTH)])
    assert isinstance(several, StackedWeight)
    assert [len(part.shape) for part in several.parts] == [2, 2, 2]
    assert several.shape == (20, WIDTH)
    linear = StackedLinear(
        [
            PlainLinear(part)
            if isinstance(part, Tensor)
            else coded_linear(part, None, tile_elements=WIDTH)
            for part in several.parts
        ]
    )
    dense = torch.cat([both, third_dense, torch.ones(2, WIDTH)])
    rows = torch.randn(3, WIDTH, generator=RANDOM)
    torch.testing.assert_close(linear(rows), rows @ dense.t(), atol=1e-3, rtol=1e-4)


def test_rows_in_another_order_and_columns_in_another_place() -> None:
    weight, dense = coded(Quant.Q5_K, 8)
    order = torch.tensor([5, 0, 7, 2])
    some = with_rows(weight, order)
    assert isinstance(some, CodedWeight)
    torch.testing.assert_close(some.dense(0, 4, SPACE[:4]), dense[order], atol=0, rtol=0)
    places = np.random.default_rng(2).permutation(WIDTH).astype(np.int32)
    matrix = CodedMatrix(
        kind=CodeKind.INT8,
        codes=np.random.default_rng(3).integers(0, 256, (6, WIDTH), dtype=np.uint8),
        scale=np.full((6, 1), 0.01, np.float32),
        columns=places,
    )
    rows = torch.randn(2, WIDTH, generator=RANDOM)
    moved = CodedWeight.of(matrix, CPU.torch_device)
    linear = coded_linear(moved, None, tile_elements=4 * WIDTH)
    expected = rows @ torch.from_numpy(matrix.dense()).t()
    torch.testing.assert_close(linear(rows), expected, atol=1e-3, rtol=1e-4)
    assert not moved.is_like(random_coded(CodeKind.INT8, 6, WIDTH, CPU.torch_device))


@pytest.mark.parametrize("quant", [Quant.Q4_0, Quant.Q5_K, Quant.Q6_K], ids=lambda q: q.name)
def test_a_rank_can_have_some_rows_and_columns(quant: Quant) -> None:
    """Columns are a head's, which need be no whole group of the file's."""
    rows = blocks(quant, 12, WIDTH)
    matrix = coded_from_blocks(rows, quant)
    assert matrix is not None
    cut = matrix.cut((range(2, 4), range(8, 11)), range(80, 80 + 64))
    assert cut is not None
    weight = CodedWeight.of(cut, CPU.torch_device)
    assert weight.shape == (5, 64)
    expected = torch.from_numpy(dequantize(rows, quant))[[2, 3, 8, 9, 10], 80:144]
    found = weight.dense(0, 5, torch.empty(5, 64))
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    moved = replace(matrix, columns=np.arange(WIDTH, dtype=np.int32)[::-1])
    assert moved.cut(None, range(64)) is None
    assert moved.cut((range(3),), None) is not None


def write_mixed_gguf(path: Path) -> ModelSource:
    """A tiny Llama whose tensors are of many element types, as llama.cpp mixes them."""
    model = tiny_model(head_dim=64)
    spec = replace(model.spec, hidden_size=256, intermediate_size=512, num_layers=2)
    writer = gguf.GGUFWriter(path, "llama")
    add_shape(writer, spec)
    quants = {"q_proj": Quant.Q4_K, "k_proj": Quant.Q4_K, "v_proj": Quant.Q6_K}
    quants |= {"o_proj": Quant.Q5_K, "gate_proj": Quant.Q4_0, "up_proj": Quant.Q4_1}
    quants |= {"down_proj": Quant.Q8_0, "embed_tokens": Quant.F16}
    for name, shape in expected_shapes(spec).items():
        quant = next((q for leaf, q in quants.items() if leaf in name), Quant.F32)
        if quant is Quant.F32:
            writer.add_tensor(gguf_name(name), np.ones(shape, np.float32))
        elif quant is Quant.F16:
            values = np.random.default_rng(4).normal(0, 0.1, shape).astype(np.float16)
            writer.add_tensor(gguf_name(name), values)
        else:
            stored = blocks(quant, shape[0], shape[1], seed=len(name))
            writer.add_tensor(gguf_name(name), stored, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return resolve(str(path))


def test_a_span_of_many_element_types_is_held_in_the_files_bytes(tmp_path: Path) -> None:
    source = write_mixed_gguf(tmp_path / "mixed.gguf")
    opened = open_source(source)
    spec = in_format(load_spec(source), "stored", opened)
    assert spec.weight_format is WeightFormat.STORED
    for span in (LayerSpan(0, 1), LayerSpan(1, 2)):
        stage = load(source, spec, span)
        stored = sum(opened.stored_bytes(name) for name in whole_tensor_names(spec, span))
        held = stage.weight_bytes
        if stage.embedding is not None:
            held -= stage.embedding.weight_bytes
        assert held <= 1.1 * stored
        assert stage.layout.startswith("stored")
        planned = spec.weight_bytes(span, DType.FLOAT32)
        assert stage.weight_bytes <= planned


@pytest.mark.parametrize("cuts", [(), (1,)])
def test_codes_answer_as_the_dense_weights_do(cuts: tuple[int, ...], tmp_path: Path) -> None:
    source = write_mixed_gguf(tmp_path / "mixed.gguf")
    native = load_spec(source)
    spec = in_format(native, "stored", open_source(source))
    ids = [5, 9, 80, 3, 17]
    kept = chain_logits(source, spec, ids, cuts)
    wide = chain_logits(source, native, ids, cuts, open_dense)
    assert float(wide.std()) > 0.05
    torch.testing.assert_close(kept, wide, atol=1e-4, rtol=1e-4)


def test_float32_of_a_quantised_file_are_its_codes_where_there_are_kernels(tmp_path: Path) -> None:
    source = write_mixed_gguf(tmp_path / "mixed.gguf")
    spec = load_spec(source)
    span = LayerSpan(0, 1)
    codes, dense = load(source, spec, span), load(source, spec, span, open_dense)
    if not has_kernels():
        assert codes.weight_bytes == dense.weight_bytes
        return
    assert codes.weight_bytes < 0.4 * dense.weight_bytes
    assert (codes.layout, codes.rows_min) == ("native (kernels)", 1)
    assert "kernels" not in dense.layout


@pytest.mark.slow
def test_layers_of_codes_can_be_measured(tmp_path: Path) -> None:
    source = write_mixed_gguf(tmp_path / "mixed.gguf")
    spec = in_format(load_spec(source), "stored", open_source(source))
    assert measure_layer(CPU, spec).decode_layer_ms > 0
