"""Phi-3 and Phi-4: Llama's layer, stored with q, k and v in one matrix, and gate and up in one."""

from node.engine.layers.block import Block, DecoderBlock
from node.engine.layers.mlp import GatedMlp
from node.engine.models.parts import ReadTensor, attention_from, load_norm, paired_rows
from plait.types import ModelSpec


def load_block(read: ReadTensor, spec: ModelSpec, layer: int) -> Block:
    """`read` gives this layer's tensors."""
    attention_norm = load_norm(read, "input_layernorm.weight", spec)
    num_queries_keys = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    qkv = paired_rows(read.weight("self_attn.qkv_proj.weight"), spec, num_queries_keys)
    attention = attention_from(read, spec, layer, qkv)
    mlp_norm = load_norm(read, "post_attention_layernorm.weight", spec)
    gate_up = read.linear(read.weight("mlp.gate_up_proj.weight"), None)
    down = read.joins.out(read.linear(read.weight("mlp.down_proj.weight"), None))
    mlp = GatedMlp(gate_up, down, spec.activation)
    return DecoderBlock(attention_norm, attention, mlp_norm, mlp)
