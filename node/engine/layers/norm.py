"""Root mean square normalisation."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.kernels.rows import row_kernels
from node.engine.tensor_bytes import num_bytes


class RmsNorm:
    """x / rms(x) * weight over the last dimension. Zhang and Sennrich (2019)."""

    __slots__ = ("_eps", "_eps_value", "_kernels", "_shape", "_share", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._shape = (weight.shape[-1],)
        self._share = 1.0 / weight.shape[-1]
        self._eps_value = eps
        self._kernels = row_kernels(weight.shape[-1], weight.dtype, weight.device)
        self._eps = torch.full((1, 1), eps, dtype=weight.dtype, device=weight.device)

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self.weight)

    def __call__(self, rows: Tensor) -> Tensor:
        """rows (R, width) to new rows."""
        if rows.dtype is not torch.float32 or rows.device.type != "cpu":
            return F.rms_norm(rows, self._shape, self.weight, self._eps_value)
        if self._kernels is not None:
            return self._kernels.norm(rows.contiguous(), self.weight, self._eps_value)
        # torch has no kernel of its own for this on a CPU: five operations are half of its ten.
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=self._share).rsqrt_()
        return torch.mul(rows, scale).mul_(self.weight)
