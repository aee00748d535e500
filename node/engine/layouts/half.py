"""float16 weights with float32 activations: half the bytes of float32, and the same answers."""

import warnings
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.tensor_bytes import num_bytes
from plait.errors import WeightsError

HALF_MAX = 65_504.0
_PADDED_TO = 16
"""FBGEMM pads a weight's rows to this many."""


class HalfLinear:
    """FBGEMM's product: panels of 16 columns, widened to float32 in registers. One thread.

    Each row's result is independent of the rows beside it, bit for bit, for any number of rows.
    """

    __slots__ = ("_bias", "_packed", "_product", "weight_bytes")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        require_half(weight)
        with warnings.catch_warnings():  # it says that it is deprecated: `can_half` watches that
            warnings.simplefilter("ignore")
            self._packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.float().contiguous())
        self._product = torch.fbgemm_linear_fp16_weight_fp32_activation
        self._bias = bias
        num_out = -(-weight.shape[0] // _PADDED_TO) * _PADDED_TO
        self.weight_bytes: int = 2 * num_out * weight.shape[1] + num_bytes(bias)

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = self._product(rows, self._packed, self._bias)
        return product

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        product: Tensor = self._product(rows, self._packed, self._bias)
        return product.add_(residual)


def require_half(weight: Tensor) -> None:
    """Raises WeightsError(reason="weights_range") where float16 cannot hold a value."""
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    if largest > HALF_MAX:
        raise WeightsError(
            f"a weight of {largest:.3g} is beyond float16: serve this model with --weights fp32",
            reason="weights_range",
        )


@cache
def can_half() -> bool:
    """Whether this torch and this processor have FBGEMM's product: tried once on a small one."""
    weight = torch.arange(48 * 32, dtype=torch.float32).reshape(48, 32).div_(1024)
    rows = torch.ones(3, 32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            product = HalfLinear(weight, torch.ones(48))(rows)
    except (AttributeError, RuntimeError):
        return False
    return bool(torch.allclose(product, F.linear(rows, weight.half().float()) + 1, atol=1e-3))
