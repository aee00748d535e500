"""int8 weights with a scale for each row: torch's weight-only product, activations in bfloat16."""

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.tensor_bytes import num_bytes

_CODE_MAX = 127.0


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(out, in) to int8 codes and bfloat16 scales (out,): symmetric, by each row's largest."""
    values = weight.float()
    scale = (values.abs().amax(dim=1) / _CODE_MAX).clamp_(min=1e-10).bfloat16()
    codes = values.div(scale.float().unsqueeze(1)).round_().clamp_(-_CODE_MAX, _CODE_MAX)
    return codes.to(torch.int8), scale


class Int8Linear:
    """torch's `_weight_int8pack_mm`: rows go in as bfloat16 and come out so."""

    __slots__ = ("_bias", "_codes", "_product", "_scale")

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self._codes = codes.contiguous()
        self._scale = scale
        self._bias = bias
        self._product = torch.ops.aten._weight_int8pack_mm.default

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._codes, self._scale, self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = self._product(rows.bfloat16(), self._codes, self._scale)
        product = product.to(rows.dtype)
        return product if self._bias is None else product.add_(self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


@cache
def can_int8(device_kind: str) -> bool:
    """Whether this torch has the product on such a device: tried once on a small one."""
    device = torch.device(device_kind)
    weight = torch.arange(64 * 32, dtype=torch.float32).reshape(64, 32).div_(1024)
    rows = torch.ones(2, 32)
    codes, scale = quantize_rows(weight)
    try:
        product = Int8Linear(codes.to(device), scale.to(device))(rows.to(device)).cpu()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = F.linear(rows, codes.float() * scale.float().unsqueeze(1))
    return bool(torch.allclose(product, expected, rtol=2e-2, atol=1e-2))
