"""Layouts: each gives what its format says, in its bytes, whoever stands beside a row."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from node.engine.device import pick_device
from node.engine.layouts.choice import choose_layouts, keeps_copies
from node.engine.layouts.grouped import group_for, quantize_grouped
from node.engine.layouts.half import HalfLinear, can_half, require_half
from node.engine.layouts.int4 import Int4Linear, can_int4
from node.engine.layouts.int8 import Int8Linear, can_int8, quantize_rows
from node.engine.layouts.tiles import CodeTiles, HalfTiles, TiledLinear
from node.engine.linear import Linear
from plait.errors import ModelError, WeightsError
from plait.types import DType, WeightFormat
from tests.unit.scheduler.pools import tiny_model

NUM_OUT, NUM_IN = 96, 128


def a_weight(num_out: int = NUM_OUT) -> Tensor:
    return torch.randn(num_out, NUM_IN, generator=torch.Generator().manual_seed(3)) * 0.05


def some_rows(count: int) -> Tensor:
    return torch.randn(count, NUM_IN, generator=torch.Generator().manual_seed(count))


def test_half_precision_multiplies_rounded_weights_in_float32() -> None:
    weight, bias, rows = a_weight(), torch.randn(NUM_OUT), some_rows(5)
    expected = F.linear(rows, weight.half().float(), bias)
    linears: list[Linear] = [TiledLinear(HalfTiles(weight), bias)]
    if can_half():
        linears.append(HalfLinear(weight, bias))
    for linear in linears:
        torch.testing.assert_close(linear(rows), expected, atol=2e-6, rtol=1e-5)
        residual = torch.randn(5, NUM_OUT)
        kept = residual.clone()
        torch.testing.assert_close(
            linear.plus(rows, residual), expected + kept, atol=2e-6, rtol=1e-5
        )
        assert torch.equal(residual, kept)
        assert linear.weight_bytes == 2 * NUM_OUT * NUM_IN + 4 * NUM_OUT


def test_a_weight_beyond_float16_is_refused() -> None:
    weight = a_weight()
    weight[3, 4] = 70_000.0
    with pytest.raises(WeightsError, match="beyond float16"):
        require_half(weight)


def test_int8_holds_a_byte_a_weight_and_a_scale_a_row() -> None:
    weight, rows = a_weight(), some_rows(4)
    codes, scale = quantize_rows(weight)
    dense = codes.float() * scale.float().unsqueeze(1)
    assert float((dense - weight).abs().max()) <= float(weight.abs().max()) / 127
    tiled = TiledLinear(CodeTiles(codes, scale.unsqueeze(1), None))
    torch.testing.assert_close(tiled(rows), F.linear(rows, dense), atol=1e-5, rtol=1e-5)
    assert tiled.weight_bytes == NUM_OUT * NUM_IN + 2 * NUM_OUT
    if can_int8("cpu"):
        packed = Int8Linear(codes, scale, torch.ones(NUM_OUT))
        torch.testing.assert_close(packed(rows), F.linear(rows, dense) + 1, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("num_out", [96, 97])
def test_int4_multiplies_its_groups_and_pads_odd_heights(num_out: int) -> None:
    if not can_int4("cpu"):
        pytest.skip("this torch has no 4-bit product")
    grouped = quantize_grouped(a_weight(num_out), 32)
    linear = Int4Linear(grouped, torch.ones(num_out))
    product = linear(some_rows(3))
    assert product.shape == (3, num_out)
    expected = F.linear(some_rows(3), grouped.dense()) + 1
    torch.testing.assert_close(product, expected, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_four_bit_blocks_of_a_file_are_found_again_exactly(kind: str) -> None:
    quant = GGMLQuantizationType[kind]
    stored = quantize(a_weight().numpy(), quant)
    dense = torch.from_numpy(dequantize(stored, quant))
    grouped = quantize_grouped(dense, 32)
    torch.testing.assert_close(grouped.dense(), dense, atol=1e-7, rtol=0)


def test_wide_groups_on_a_grid_are_found_again_in_narrow_ones() -> None:
    """As GPTQ and AWQ have them: 128 columns share a scale, and few codes may occur."""
    rng = np.random.default_rng(5)
    codes = torch.from_numpy(rng.integers(3, 9, (8, 128)).astype(np.float32))
    dense = (codes - 8) * 0.0123
    for group in (128, 32):
        grouped = quantize_grouped(dense, group)
        torch.testing.assert_close(grouped.dense(), dense, atol=1e-7, rtol=0)
        assert grouped.group == group


def test_values_on_no_grid_are_rounded_with_little_error() -> None:
    weight = a_weight()
    error = (quantize_grouped(weight, 32).dense() - weight).square().mean().sqrt()
    assert float(error) < 0.09 * float(weight.std())
    constant = torch.full((4, 32), 0.25)
    torch.testing.assert_close(quantize_grouped(constant, 32).dense(), constant)


def test_groups_divide_the_width() -> None:
    assert [group_for(width) for width in (1024, 576, 96, 100)] == [128, 64, 32, None]


@pytest.mark.parametrize(
    "weight_format", [WeightFormat.FP16, WeightFormat.INT8, WeightFormat.INT4, WeightFormat.Q4_1]
)
def test_a_row_is_the_same_whoever_stands_beside_it(weight_format: WeightFormat) -> None:
    device = pick_device("cpu", DType.FLOAT32)
    spec = replace(tiny_model(), weight_format=weight_format)
    layouts = choose_layouts(device, spec)
    if "tiles" in layouts.name:
        pytest.skip("no kernel of this format here")
    assert layouts.rows_min in (1, 3)
    linear = layouts.layers.make(a_weight(), None)
    all_rows = some_rows(40)
    together = linear(all_rows)
    for count in (1, 2, 3, 4, 7, 16, 29, 31, 37, 38):
        assert torch.equal(linear(all_rows[:count].contiguous()), together[:count])


def test_native_weights_keep_the_products_that_they_had() -> None:
    device = pick_device("cpu", DType.FLOAT32)
    layouts = choose_layouts(device, tiny_model())
    expected = F.linear(some_rows(4), a_weight())
    made = layouts.layers.make(a_weight(), None)
    torch.testing.assert_close(made(some_rows(4)), expected, atol=1e-5, rtol=1e-5)
    assert keeps_copies(device, replace(tiny_model(), weight_format=WeightFormat.FP16))


def test_a_format_that_the_engine_does_not_hold_is_refused() -> None:
    device = pick_device("cpu", DType.FLOAT32)
    with pytest.raises(ModelError, match="fp8"):
        choose_layouts(device, replace(tiny_model(), weight_format=WeightFormat.FP8))
