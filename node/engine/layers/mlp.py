"""The gated feed-forward part of a layer."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.kernels.rows import row_kernels
from node.engine.linear import Linear
from plait.types import Activation

_CLAMP, _SLOPE = 7.0, 1.702


class GatedMlp:
    """down(act(gate(x)) * up(x)); gate and up are one product. Shazeer, "GLU Variants" (2020)."""

    __slots__ = ("_activation", "_down", "_gate_up")

    def __init__(
        self, gate_up: Linear, down: Linear, activation: Activation = Activation.SILU
    ) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    @property
    def weight_bytes(self) -> int:
        return self._gate_up.weight_bytes + self._down.weight_bytes

    def __call__(self, rows: Tensor, residual: Tensor | None) -> Tensor:
        """rows, residual: (R, hidden). Without a residual, what would be added to it."""
        inner = self._gated(self._gate_up(rows))
        return self._down(inner) if residual is None else self._down.plus(inner, residual)

    def _gated(self, both: Tensor) -> Tensor:
        """(R, 2 * inner), gate before up, to (R, inner)."""
        if self._activation is Activation.SILU:
            kernels = row_kernels(both.shape[1] // 2, both.dtype, both.device)
            if kernels is not None:
                return kernels.gate(both.contiguous())
        gate, up = both.view(len(both), 2, -1).unbind(1)  # half of what chunk takes
        return gated(gate, up, self._activation)


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """act(gate) * up, both (R, inner)."""
    if activation is Activation.SILU:
        return F.silu(gate).mul_(up)
    if activation is Activation.GELU_TANH:
        return F.gelu(gate, approximate="tanh").mul_(up)
    # gpt-oss: clamped from above, both ways for up, a steeper sigmoid, and up counts from -1.
    gate = gate.clamp(max=_CLAMP)
    return torch.sigmoid(gate * _SLOPE).mul_(gate).mul_(up.clamp(-_CLAMP, _CLAMP).add_(1.0))
