"""Matrix products with fixed weights: packed for oneDNN on a CPU, plain elsewhere.

Weights are read from memory once a step, so a decode step is as fast as its weights arrive.
oneDNN's blocked layout reaches the memory's rate for 4 rows and more; MKL on plain weights needs
twice the time for 4 rows and three times for 3. For 2 rows and more each row's result is
independent of the other rows, bit for bit: that makes batching invisible to a request.
"""

import os
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.tensor_bytes import num_bytes

ROWS_MIN = 4
"""Rows are padded to this many: 4 packed rows cost less than 1, and all take the same path."""

KERNELS_MAX = 128
"""Kernels that oneDNN keeps, one for each weight's shape and number of rows, about a quarter MiB
each. By its own default it keeps two thousand, and a node's memory grows by half a GiB; a kernel
that was dropped is built again in well under a millisecond."""


class Linear(Protocol):
    """y = x Wᵀ + b, rows of x (T, in) to rows of y (T, out), contiguous."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weight and bias in memory."""
        ...

    def __call__(self, rows: Tensor) -> Tensor: ...

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        """`residual` + y; may be fused. Does not change `residual` (T, out)."""
        ...


class PlainLinear:
    """torch's own product over a (out, in) weight."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._weight, self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self._weight, self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return F.linear(rows, self._weight, self._bias).add_(residual)


class PackedLinear:
    """oneDNN's product over a weight in its blocked layout; the residual is added inside it."""

    __slots__ = ("_add", "_bias", "_linear", "_packed")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        ops = torch.ops.mkldnn
        self._packed: Tensor = ops._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._linear = ops._linear_pointwise.default
        self._add = ops._linear_pointwise.binary

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._packed, self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = self._linear(rows, self._packed, self._bias, "none", [], "")
        return product

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        total: Tensor = self._add(rows, residual, self._packed, self._bias, "add")
        return total


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest product for this weight's device and dtype. `weight` is (out, in)."""
    if can_pack(weight.device.type, weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


@cache
def can_pack(device_kind: str, dtype: torch.dtype) -> bool:
    """Whether this torch and this processor have the packed product: tried once on a small one."""
    if device_kind != "cpu":
        return False
    _bound_kernels()
    weight = torch.arange(64 * 32, dtype=torch.float32).reshape(64, 32).div_(1024).to(dtype)
    rows = torch.ones(ROWS_MIN, 32, dtype=dtype)
    try:
        packed = PackedLinear(weight)
        total = packed.plus(rows, torch.ones(ROWS_MIN, 64, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    expected = F.linear(rows.float(), weight.float()) + 1
    return bool(torch.allclose(total.float(), expected, rtol=1e-2, atol=1e-2))


def _bound_kernels() -> None:
    """oneDNN and torch's layer above it read these once, at the first product."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS_MAX))
