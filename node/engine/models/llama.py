"""Llama 1 to 3, SmolLM2 and SmolLM3, Qwen2 and 2.5, Qwen3, Mistral: pre-norm layers."""

from node.engine.layers.block import Block, DecoderBlock
from node.engine.models.parts import ReadTensor, load_attention, load_mlp, load_norm
from plait.types import ModelSpec


def load_block(read: ReadTensor, spec: ModelSpec, layer: int) -> Block:
    """x + attention(norm(x)), then x + mlp(norm(x)). `read` gives this layer's tensors."""
    return DecoderBlock(
        load_norm(read, "input_layernorm.weight", spec),
        load_attention(read, spec, layer),
        load_norm(read, "post_attention_layernorm.weight", spec),
        load_mlp(read, spec),
    )
