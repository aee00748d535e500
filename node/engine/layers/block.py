"""One decoder layer."""

from typing import Protocol

from torch import Tensor

from node.engine.layers.attention import Attention
from node.engine.layers.norm import RmsNorm
from node.engine.step_plan import StepPlan


class Block(Protocol):
    """A decoder layer, of whatever family."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters in memory."""
        ...

    def __call__(self, rows: Tensor, layer: int, plan: StepPlan) -> Tensor:
        """rows: (R, hidden); `layer` counts from the held span's first. Returns new rows."""
        ...


class FeedForward(Protocol):
    """The part of a layer that looks at each row by itself, (R, hidden) to (R, hidden)."""

    @property
    def weight_bytes(self) -> int: ...

    def __call__(self, rows: Tensor, residual: Tensor | None) -> Tensor:
        """What the rows become, added to `residual` where there is one."""
        ...


class DecoderBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)); the pre-norm layer of the Llama family."""

    __slots__ = ("_attention", "_attention_norm", "_mlp", "_mlp_norm")

    def __init__(
        self, attention_norm: RmsNorm, attention: Attention, mlp_norm: RmsNorm, mlp: FeedForward
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


class SandwichBlock:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))); the layer of Gemma 2 and 3."""

    __slots__ = (
        "_after_attention",
        "_after_mlp",
        "_attention",
        "_attention_norm",
        "_mlp",
        "_mlp_norm",
    )

    def __init__(
        self,
        attention_norm: RmsNorm,
        attention: Attention,
        after_attention: RmsNorm,
        mlp_norm: RmsNorm,
        mlp: FeedForward,
        after_mlp: RmsNorm,
    ) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._after_attention = after_attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp
        self._after_mlp = after_mlp

    @property
    def weight_bytes(self) -> int:
        norms = (self._attention_norm, self._after_attention, self._mlp_norm, self._after_mlp)
        total = self._attention.weight_bytes + self._mlp.weight_bytes
        return total + sum(norm.weight_bytes for norm in norms)

    def __call__(self, rows: Tensor, layer: int, plan: StepPlan) -> Tensor:
        """rows: (R, hidden); `layer` counts from the held span's first. Returns new rows."""
        mixed = self._attention(self._attention_norm(rows), None, layer, plan)
        rows = self._after_attention(mixed).add_(rows)
        return self._after_mlp(self._mlp(self._mlp_norm(rows), None)).add_(rows)
