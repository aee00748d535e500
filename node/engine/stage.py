"""The part of a model that a node holds: embedding, layers, final norm and head, as far as held."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.layers.block import DecoderBlock
from node.engine.layers.norm import RmsNorm
from node.engine.linear import Linear
from node.engine.step_plan import StepPlan
from plait.types import LayerSpan, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStage:
    """Modules of the layers in `span`. `embedding` (vocab, hidden) where layer 0 is held;
    `final_norm` and `head` where the last one is. `rotations` (positions, head_dim / 2).

    Llama, Qwen2, Qwen3 and Mistral differ by what the spec says (biases, q/k norms, a sliding
    window), not by code.
    """

    spec: ModelSpec
    span: LayerSpan
    embedding: Tensor | None
    blocks: tuple[DecoderBlock, ...]
    final_norm: RmsNorm | None
    head: Linear | None
    head_shares_embedding: bool
    rotations: Tensor

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters in memory; a matrix that embedding and head share counts once."""
        total = sum(block.weight_bytes for block in self.blocks)
        if self.embedding is not None:
            total += self.embedding.numel() * self.embedding.element_size()
        if self.final_norm is not None:
            total += self.final_norm.weight_bytes
        if self.head is not None and not self.head_shares_embedding:
            total += self.head.weight_bytes
        return total

    def embed(self, token_ids: Tensor) -> Tensor:
        """(T,) int64 to (T, hidden). Ids must be below vocab_size."""
        assert self.embedding is not None, f"layers {self.span} hold no embedding"
        return F.embedding(token_ids, self.embedding)

    def run_layers(self, rows: Tensor, span: LayerSpan, plan: StepPlan) -> Tensor:
        """Run the layers of `span`, a part of what is held, over rows (R, hidden)."""
        first = span.start - self.span.start
        for layer in range(first, first + len(span)):
            rows = self.blocks[layer](rows, layer, plan)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """(R, hidden) after the last layer to float32 (R, vocab)."""
        assert self.final_norm is not None and self.head is not None, f"{self.span} has no head"
        return self.head(self.final_norm(rows)).to(torch.float32)
