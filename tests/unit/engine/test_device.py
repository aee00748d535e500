"""Choosing a device, and products on it."""

import pytest
import torch

from node.engine.device import pick_device
from node.engine.linear import (
    ROWS_MIN,
    PackedLinear,
    PlainLinear,
    can_pack,
    make_linear,
    packed_rows_min,
)
from node.engine.tensor_bytes import bytes_of, tensor_from_bytes
from plait.errors import ConfigError
from plait.types import DType


def test_a_cpu_computes_in_float32_unless_told_otherwise() -> None:
    device = pick_device("cpu")
    assert (device.kind, device.compute_dtype) == ("cpu", DType.FLOAT32)
    assert device.free_bytes() > 0 and device.name
    assert pick_device("cpu", DType.BFLOAT16).dtype is torch.bfloat16


@pytest.mark.parametrize("name", ["tpu9", "meta", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        pick_device(name)


def test_float16_needs_a_gpu() -> None:
    with pytest.raises(ConfigError):
        pick_device("cpu", DType.FLOAT16)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 33])
@pytest.mark.parametrize("has_bias", [True, False])
def test_packed_and_plain_products_agree(rows: int, has_bias: bool) -> None:
    weight, x = torch.randn(50, 24), torch.randn(rows, 24)
    bias = torch.randn(50) if has_bias else None
    residual = torch.randn(rows, 50)
    plain, fastest = PlainLinear(weight, bias), make_linear(weight, bias)
    torch.testing.assert_close(fastest(x), plain(x), atol=1e-5, rtol=1e-5)
    kept = residual.clone()
    torch.testing.assert_close(
        fastest.plus(x, residual), plain.plus(x, residual), atol=1e-5, rtol=1e-5
    )
    assert torch.equal(residual, kept)
    assert fastest.weight_bytes == plain.weight_bytes
    assert isinstance(fastest, PackedLinear) == can_pack("cpu", torch.float32)


@pytest.mark.skipif(not can_pack("cpu", torch.float32), reason="this torch packs no weights")
@pytest.mark.parametrize(("num_out", "width"), [(576, 1536), (960, 576), (50, 24)])
def test_a_row_of_the_fewest_comes_out_as_among_many(num_out: int, width: int) -> None:
    count = packed_rows_min(torch.float32)
    assert 1 <= count <= ROWS_MIN
    linear = PackedLinear(torch.randn(num_out, width))
    rows, residual = torch.randn(40, width), torch.randn(40, num_out)
    product, total = linear(rows), linear.plus(rows, residual)
    for few in (count, count + 1, 7):
        assert torch.equal(linear(rows[:few]), product[:few])
        assert torch.equal(linear.plus(rows[:few], residual[:few]), total[:few])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_bytes_come_back_as_they_went(dtype: DType) -> None:
    tensor = torch.randn(3, 5).to(getattr(torch, dtype.value))
    raw = bytes_of(tensor)
    assert bytes_of(tensor.t().contiguous().t()) == raw  # laid out otherwise
    assert len(raw) == 15 * dtype.num_bytes
    assert torch.equal(tensor_from_bytes(raw, dtype, (3, 5)), tensor)
    with pytest.raises(ValueError, match="needed"):
        tensor_from_bytes(raw[:-1], dtype, (3, 5))


def test_nothing_is_computed_in_the_dtype_of_the_wire_alone() -> None:
    with pytest.raises(ConfigError, match="on the wire"):
        pick_device("cpu", DType.INT8)
