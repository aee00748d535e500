"""One decoder layer."""

from torch import Tensor

from node.engine.layers.attention import Attention
from node.engine.layers.mlp import GatedMlp
from node.engine.layers.norm import RmsNorm
from node.engine.step_plan import StepPlan


class DecoderBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)); the pre-norm layer of the Llama family."""

    __slots__ = ("_attention", "_attention_norm", "_mlp", "_mlp_norm")

    def __init__(
        self, attention_norm: RmsNorm, attention: Attention, mlp_norm: RmsNorm, mlp: GatedMlp
    ) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    @property
    def weight_bytes(self) -> int:
        parts = (self._attention_norm, self._attention, self._mlp_norm, self._mlp)
        return sum(part.weight_bytes for part in parts)

    def __call__(self, rows: Tensor, layer: int, plan: StepPlan) -> Tensor:
        """rows: (R, hidden); `layer` counts from the held span's first. Returns new rows."""
        rows = self._attention(self._attention_norm(rows), rows, layer, plan)
        return self._mlp(self._mlp_norm(rows), rows)
