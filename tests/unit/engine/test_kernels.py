"""Kernels over codes: they multiply with exactly the file's numbers, and a row at a time."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Quant
from torch import Tensor

from node.engine.kernels.processor import can_run, has_kernels
from node.engine.layouts import kernels
from node.engine.layouts.choice import choose_layouts, keeps_codes
from node.engine.layouts.coded import CodedWeight
from node.engine.layouts.kernel_code import FEW_ROWS
from node.engine.layouts.kernel_linear import KernelLinear, fits_kernels, kernel_linear
from plait.models.coded import CodedMatrix, CodeKind
from plait.types import WeightFormat
from tests.unit.engine.kit import CPU
from tests.unit.engine.test_stored import QUANTS, RANDOM, WIDTH, coded
from tests.unit.scheduler.pools import tiny_model

if not has_kernels():
    pytest.skip("this processor has no kernels", allow_module_level=True)

HEIGHT = 45
"""A tile and a part of one."""

COUNTS = (1, 2, FEW_ROWS, FEW_ROWS + 1, 6, 19)


def some_rows(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=RANDOM)


@pytest.mark.parametrize("quant", QUANTS, ids=lambda quant: quant.name)
def test_a_weight_is_the_files_number_to_the_last_bit(quant: Quant) -> None:
    weight, dense = coded(quant, HEIGHT)
    linear = KernelLinear(weight, None)
    assert linear.weight_bytes <= 64 / HEIGHT * weight.weight_bytes
    columns = torch.eye(WIDTH)
    assert torch.equal(linear(columns), dense.t())  # as many rows
    for column in (0, 31, WIDTH - 1):
        assert torch.equal(linear(columns[column : column + 1])[0], dense[:, column])


@pytest.mark.parametrize("quant", [Quant.Q8_0, Quant.Q4_K, Quant.Q6_K], ids=lambda q: q.name)
def test_products_are_those_of_the_dense_weight(quant: Quant) -> None:
    weight, dense = coded(quant, HEIGHT)
    bias = torch.randn(HEIGHT, generator=RANDOM)
    linear = KernelLinear(weight, bias)
    for count in COUNTS:
        rows, residual = some_rows(count), torch.ones(count, HEIGHT)
        expected = rows.double() @ dense.double().t() + bias
        torch.testing.assert_close(linear(rows).double(), expected, atol=1e-4, rtol=1e-5)
        total = linear.plus(rows, residual)
        torch.testing.assert_close(total.double(), expected + 1, atol=1e-4, rtol=1e-5)
        assert torch.equal(residual, torch.ones(count, HEIGHT))
    assert linear(some_rows(0)).shape == (0, HEIGHT)
    wide = some_rows(8).t().contiguous().t()  # columns first in memory
    assert torch.equal(linear(wide), linear(wide.contiguous()))


@pytest.mark.parametrize("quant", [Quant.Q8_0, Quant.Q5_1], ids=lambda quant: quant.name)
def test_a_row_is_the_same_bit_for_bit_whoever_stands_beside_it(quant: Quant) -> None:
    linear = KernelLinear(coded(quant, HEIGHT)[0], None)
    rows = some_rows(20)
    together = linear(rows)
    for count in COUNTS:
        for first in (0, 20 - count):
            some = linear(rows[first : first + count])
            assert torch.equal(some, together[first : first + count])


@pytest.mark.parametrize("num_registers", [16, 32])
def test_how_many_registers_there_are_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, num_registers: int
) -> None:
    weight, rows = coded(Quant.Q4_K, HEIGHT)[0], some_rows(FEW_ROWS)
    expected = KernelLinear(weight, None)(rows)
    monkeypatch.setattr(kernels, "num_registers", lambda: num_registers)
    kernels.compiled.cache_clear()
    linear = KernelLinear(weight, None)
    kernels.compiled.cache_clear()
    for count in range(1, FEW_ROWS + 1):
        assert torch.equal(linear(rows[:count]), expected[:count])


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_threads_change_no_bit(three_threads: None) -> None:
    weight, dense = coded(Quant.Q8_0, 4_200)
    linear, rows = KernelLinear(weight, None), some_rows(2)
    together = linear(rows)
    torch.set_num_threads(1)
    assert torch.equal(linear(rows), together)
    torch.testing.assert_close(together, rows @ dense.t(), atol=1e-3, rtol=1e-4)


def test_groups_of_any_width_zero_points_and_an_order_of_columns() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (40, WIDTH), dtype=np.uint8)
    scale = rng.normal(size=(40, 2)).astype(np.float32)
    bytes_of = rng.integers(0, 256, (40, WIDTH), dtype=np.uint8)
    for matrix in (
        CodedMatrix(kind=CodeKind.INT8, codes=bytes_of, scale=scale[:, :1]),
        CodedMatrix(kind=CodeKind.UINT4, codes=codes, scale=scale, least=scale * np.float32(0.3)),
        CodedMatrix(
            kind=CodeKind.UINT4,
            codes=codes,
            scale=scale.astype(np.float16),
            least_codes=rng.integers(1, 16, (40, 8), dtype=np.uint8),
            columns=rng.permutation(WIDTH).astype(np.int32),
        ),
    ):
        linear = kernel_linear(CodedWeight.of(matrix, CPU.torch_device), None)
        dense = torch.from_numpy(matrix.dense())
        assert torch.equal(linear(torch.eye(WIDTH)), dense.t())
        assert torch.equal(linear(torch.eye(WIDTH)[:1]), dense.t()[:1])


def test_what_no_kernel_is_made_for_is_left_to_others() -> None:
    scale = np.ones((8, 2), dtype=np.float16)
    codes = np.zeros((8, WIDTH), dtype=np.uint8)
    for matrix in (
        CodedMatrix(kind=CodeKind.FLOAT8, codes=codes, scale=scale),
        CodedMatrix(kind=CodeKind.UINT5, codes=codes, scale=np.ones((8, WIDTH // 4), np.float16)),
    ):
        assert not fits_kernels(CodedWeight.of(matrix, CPU.torch_device))


def test_processors_without_fused_multiplication_have_none() -> None:
    modern = {"avx2": True, "f16c": True, "fma": True}
    assert can_run("x86_64", modern) and can_run("AMD64", modern)
    assert not can_run("x86_64", {**modern, "fma": False}) and not can_run("x86_64", {})
    assert not can_run("riscv64", modern)


def test_codes_stay_where_they_are_the_quicker_way_to_the_same_numbers() -> None:
    kept = {
        weight_format: keeps_codes(CPU, replace(tiny_model(), weight_format=weight_format))
        for weight_format in (WeightFormat.NATIVE, WeightFormat.STORED, WeightFormat.FP16)
    }
    assert kept == {
        WeightFormat.NATIVE: True,
        WeightFormat.STORED: True,
        WeightFormat.FP16: False,
    }
    layouts = choose_layouts(CPU, tiny_model())
    assert layouts.name_for(has_codes=True, has_dense=False) == "native (kernels)"
    assert (
        layouts.name_for(has_codes=True, has_dense=True)
        == f"native (kernels, {layouts.layers.name})"
    )
    assert layouts.name_for(has_codes=False, has_dense=True) == layouts.name
