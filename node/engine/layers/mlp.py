"""The gated feed-forward part of a layer."""

import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.linear import Linear


class GatedMlp:
    """residual + down(silu(gate(x)) * up(x)); gate and up are one product. Shazeer (2020)."""

    __slots__ = ("_down", "_gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    @property
    def weight_bytes(self) -> int:
        return self._gate_up.weight_bytes + self._down.weight_bytes

    def __call__(self, rows: Tensor, residual: Tensor) -> Tensor:
        gate, up = self._gate_up(rows).chunk(2, dim=-1)
        return self._down.plus(F.silu(gate).mul_(up), residual)
