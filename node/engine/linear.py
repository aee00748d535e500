"""Matrix products with fixed weights: packed for oneDNN on a CPU, plain elsewhere.

Weights are read from memory once a step, so a decode step is as fast as its weights arrive.
oneDNN's blocked layout comes near the memory's rate for few rows; MKL on plain weights needs twice
the time for 4 rows and three times for 3. For 2 rows and more (on some processors for one, too)
each row's result is independent of the other rows, bit for bit: that makes batching invisible to a
request. Which number of rows is cheapest differs by processor, and is measured.
"""

import os
import time
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.tensor_bytes import num_bytes

ROWS_MIN = 4
"""Rows are padded to this many where nothing was measured: on many processors 4 packed rows cost
less than 1 or 2, and all take the same path."""

_PROBE_SHAPES = ((192, 576), (64, 1536))
_PROBE_ROWS = 16
_TIMED_SHAPE = (4_096, 1_024)
"""More than a core's caches hold."""

_TIMED_ROUNDS = 7
_GAIN_MIN = 1.04
"""By how much fewer rows must be quicker: noise is no reason."""

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


@cache
def packed_rows_min(dtype: torch.dtype) -> int:
    """To how many rows steps over packed weights are padded here: the count up to ROWS_MIN with the
    quickest product, of those whose rows come out as they do among many. Tried once, in a few
    hundredths of a second."""
    counts = _independent_counts(dtype)
    if ROWS_MIN not in counts:
        return ROWS_MIN
    times = _times_s(counts, dtype)
    best = min(counts, key=times.__getitem__)
    return best if times[best] * _GAIN_MIN <= times[ROWS_MIN] else ROWS_MIN


@torch.inference_mode()
def _independent_counts(dtype: torch.dtype) -> list[int]:
    """Numbers of rows up to ROWS_MIN, the largest first, whose products are as among many rows."""
    generator = torch.Generator().manual_seed(1)
    counts = list(range(ROWS_MIN, 0, -1))
    for num_out, width in _PROBE_SHAPES:
        linear = PackedLinear(torch.randn(num_out, width, generator=generator).to(dtype))
        rows = torch.randn(_PROBE_ROWS, width, generator=generator).to(dtype)
        residual = torch.randn(_PROBE_ROWS, num_out, generator=generator).to(dtype)
        product, total = linear(rows), linear.plus(rows, residual)
        counts = [
            n
            for n in counts
            if torch.equal(linear(rows[:n]), product[:n])
            and torch.equal(linear.plus(rows[:n], residual[:n]), total[:n])
        ]
    return counts


@torch.inference_mode()
def _times_s(counts: list[int], dtype: torch.dtype) -> dict[int, float]:
    """The least of each count, in turns; the processor's own time, as others may run beside."""
    linear = PackedLinear(torch.full(_TIMED_SHAPE, 0.01, dtype=dtype))
    best = dict.fromkeys(counts, float("inf"))
    for _ in range(_TIMED_ROUNDS):
        for count in counts:
            rows = torch.ones(count, _TIMED_SHAPE[1], dtype=dtype)
            started_s = time.thread_time()
            linear(rows)
            best[count] = min(best[count], time.thread_time() - started_s)
    return best


def _bound_kernels() -> None:
    """oneDNN and torch's layer above it read these once, at the first product."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS_MAX))
