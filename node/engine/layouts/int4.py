"""4-bit weights in groups: torch's weight-only products, activations in bfloat16."""

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.layouts.grouped import GroupedWeight, quantize_grouped
from node.engine.tensor_bytes import num_bytes

OUT_MULTIPLE = 16
"""Rows of a weight that the CPU's kernel takes; the loader's weights are padded to it."""

_CUDA_INNER_TILES = 8
_MIDDLE = 8


class Int4Linear:
    """torch's `_weight_int4pack_mm`, or its CPU sister: w = (code - 8) * scale + zero."""

    __slots__ = ("_bias", "_codes", "_group", "_num_out", "_product", "_scales")

    def __init__(self, weight: GroupedWeight, bias: Tensor | None = None) -> None:
        self._num_out = weight.codes.shape[0]
        missing = -self._num_out % OUT_MULTIPLE
        codes = F.pad(weight.codes, (0, 0, 0, missing))
        scale, least = (F.pad(t, (0, 0, 0, missing)) for t in (weight.scale, weight.least))
        scales = torch.stack((scale.t(), (least + _MIDDLE * scale).t()), dim=-1)
        self._scales = scales.bfloat16().contiguous()
        self._group = weight.group
        self._bias = bias
        ops = torch.ops.aten
        if codes.device.type == "cpu":
            self._codes: Tensor = ops._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
            self._product = ops._weight_int4pack_mm_for_cpu.default
        else:
            pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
            self._codes = ops._convert_weight_to_int4pack(pairs, _CUDA_INNER_TILES)
            self._product = ops._weight_int4pack_mm.default

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._codes, self._scales, self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = self._product(rows.bfloat16(), self._codes, self._group, self._scales)
        product = product[:, : self._num_out].to(rows.dtype)
        return product if self._bias is None else product.add_(self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


@cache
def can_int4(device_kind: str) -> bool:
    """Whether this torch has the product on such a device: tried once on a small one."""
    device = torch.device(device_kind)
    weight = torch.arange(64 * 128, dtype=torch.float32).reshape(64, 128).div_(4096)
    rows = torch.ones(2, 128)
    grouped = quantize_grouped(weight, 32)
    on_device = GroupedWeight(
        *(t.to(device) for t in (grouped.codes, grouped.scale, grouped.least))
    )
    try:
        product = Int4Linear(on_device)(rows.to(device)).cpu()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return bool(torch.allclose(product, F.linear(rows, grouped.dense()), rtol=3e-2, atol=3e-2))
