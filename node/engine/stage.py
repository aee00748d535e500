"""The part of a model that a node holds: embedding, layers, final norm and head, as far as held."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from node.engine.embedding import Embedding, RowEmbedding
from node.engine.layers.block import Block
from node.engine.layers.norm import RmsNorm
from node.engine.linear import ROWS_MIN, Linear
from node.engine.rope import Rotations
from node.engine.step_plan import StepPlan
from plait.types import LayerSpan, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStage:
    """Modules of the layers in `span`. `embedding` where layer 0 is held; `final_norm` and
    `head` where the last one is. Steps have at least `rows_min` rows; `layout` says for people how
    weights lie in memory. `runs_in_lanes`: products use one thread each. `before_layers` hears of
    each step first, where others take part in it.

    How families differ is said by the spec and, for what a layer is made of, `node.engine.models`.
    """

    spec: ModelSpec
    span: LayerSpan
    embedding: Embedding | None
    blocks: tuple[Block, ...]
    final_norm: RmsNorm | None
    head: Linear | None
    head_shares_embedding: bool
    rotations: Rotations
    rows_min: int = ROWS_MIN
    layout: str = ""
    runs_in_lanes: bool = False
    before_layers: Callable[[Tensor, LayerSpan, StepPlan], None] | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters in memory; a matrix that embedding and head share counts once."""
        total = sum(block.weight_bytes for block in self.blocks)
        if self.embedding is not None:
            total += self.embedding.weight_bytes
        if self.final_norm is not None:
            total += self.final_norm.weight_bytes
        if self.head is not None and not self.head_shares_embedding:
            total += self.head.weight_bytes
        return total

    @property
    def reads_rows(self) -> bool:
        """Whether the weights' file stays open for rows of the embedding."""
        return isinstance(self.embedding, RowEmbedding)

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """T ids below vocab_size to (T, hidden) on the device. Raises WeightsError."""
        assert self.embedding is not None, f"layers {self.span} hold no embedding"
        rows = self.embedding(token_ids)
        scale = self.spec.embedding_scale
        return rows if scale is None else rows.mul_(scale)

    def run_layers(self, rows: Tensor, span: LayerSpan, plan: StepPlan) -> Tensor:
        """Run the layers of `span`, a part of what is held, over rows (R, hidden)."""
        if self.before_layers is not None:
            self.before_layers(rows, span, plan)
        first = span.start - self.span.start
        for layer in range(first, first + len(span)):
            rows = self.blocks[layer](rows, layer, plan)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """(R, hidden) after the last layer to float32 (R, vocab)."""
        assert self.final_norm is not None and self.head is not None, f"{self.span} has no head"
        logits = self.head(self.final_norm(rows))
        if logits.dtype is not torch.float32:
            logits = logits.to(torch.float32)
        cap = self.spec.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def close(self) -> None:
        """Let go of the weights' file. Idempotent."""
        if self.embedding is not None:
            self.embedding.close()
