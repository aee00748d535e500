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

_PADDING_MAX = 4
_PROBE_WIDTH = 512


class HalfLinear:
    """FBGEMM's product: panels of 16 columns, widened to float32 in registers. One thread.

    Each row's result is independent of the rows beside it, bit for bit, for any number of rows.
    FBGEMM walks through rows by a few at a time, and some processors' kernels for one and for two
    sum up in another order than those for more: there such an end is padded (`padded_rows`).
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
        count = rows.shape[0]
        missing = padded_rows(count) - count
        if not missing:
            product: Tensor = self._product(rows, self._packed, self._bias)
            return product
        padded: Tensor = self._product(F.pad(rows, (0, 0, 0, missing)), self._packed, self._bias)
        return padded[:count]

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


def require_half(weight: Tensor) -> None:
    """Raises WeightsError(reason="weights_range") where float16 cannot hold a value."""
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    if largest > HALF_MAX:
        raise WeightsError(
            f"a weight of {largest:.3g} is beyond float16: serve this model with --weights fp32",
            reason="weights_range",
        )


@cache
def padded_rows(count: int) -> int:
    """So many rows, or a few more, are multiplied so that the last come out as they do among four:
    the ends are what differs. Tried out, once for a count."""
    if count == 0:
        return 0
    generator = torch.Generator().manual_seed(count)
    end = torch.randn(_PADDING_MAX, _PROBE_WIDTH, generator=generator)
    weight = torch.randn(_PADDED_TO, _PROBE_WIDTH, generator=generator)
    rows = torch.zeros(count + _PADDING_MAX, _PROBE_WIDTH)
    last = min(count, _PADDING_MAX)
    rows[count - last : count] = end[:last]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        product = torch.fbgemm_linear_fp16_weight_fp32_activation
        wanted = product(end, packed, None)[:last]
        for padded in range(count, count + _PADDING_MAX + 1):
            if torch.equal(product(rows[:padded], packed, None)[count - last : count], wanted):
                return padded
    return count


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
