"""Gemma 2 and Gemma 3 (text): norms on both sides of attention and MLP, soft caps on scores.

What else they have is said by the spec: windows and rotations by layer, norms of q and k (3),
GeGLU, the embedding's scale, a soft cap on logits (2).
"""

from node.engine.layers.block import Block, SandwichBlock
from node.engine.layers.scores import ScoreRule
from node.engine.models.parts import ReadTensor, load_attention, load_mlp, load_norm
from plait.types import ModelSpec


def load_block(read: ReadTensor, spec: ModelSpec, layer: int) -> Block:
    """`read` gives this layer's tensors."""
    cap = spec.attention_softcap
    rule = None if cap is None else ScoreRule(softcap=cap)
    return SandwichBlock(
        load_norm(read, "input_layernorm.weight", spec),
        load_attention(read, spec, layer, rule),
        load_norm(read, "post_attention_layernorm.weight", spec),
        load_norm(read, "pre_feedforward_layernorm.weight", spec),
        load_mlp(read, spec),
        load_norm(read, "post_feedforward_layernorm.weight", spec),
    )
