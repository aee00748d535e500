"""Root mean square normalisation."""

import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor


class RmsNorm:
    """x / rms(x) * weight over the last dimension. Zhang and Sennrich (2019)."""

    __slots__ = ("_eps", "_shape", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._shape = (weight.shape[-1],)
        self._eps = eps

    @property
    def weight_bytes(self) -> int:
        return self.weight.numel() * self.weight.element_size()

    def __call__(self, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, self._shape, self.weight, self._eps)
