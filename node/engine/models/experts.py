"""Mixtral and Qwen3-MoE: Llama's layer with a mixture of experts for its MLP."""

from node.engine.layers.block import Block, DecoderBlock
from node.engine.models.parts import ReadTensor, load_attention, load_experts, load_norm
from plait.types import ModelSpec


def load_block(read: ReadTensor, spec: ModelSpec, layer: int) -> Block:
    """`read` gives this layer's tensors."""
    return DecoderBlock(
        load_norm(read, "input_layernorm.weight", spec),
        load_attention(read, spec, layer),
        load_norm(read, "post_attention_layernorm.weight", spec),
        load_experts(read, spec),
    )
