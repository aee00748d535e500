"""gpt-oss: attention with a sink a head, and experts with biases and a clamped SwiGLU.

OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025), section 2.
"""

from node.engine.layers.block import Block, DecoderBlock
from node.engine.layers.scores import ScoreRule
from node.engine.models.parts import ReadTensor, load_attention, load_experts, load_norm
from plait.types import ModelSpec


def load_block(read: ReadTensor, spec: ModelSpec, layer: int) -> Block:
    """`read` gives this layer's tensors."""
    attention_norm = load_norm(read, "input_layernorm.weight", spec)
    rule = ScoreRule(sinks=read("self_attn.sinks"))
    return DecoderBlock(
        attention_norm,
        load_attention(read, spec, layer, rule),
        load_norm(read, "post_attention_layernorm.weight", spec),
        load_experts(read, spec),
    )
