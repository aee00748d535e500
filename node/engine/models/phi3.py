"""Phi-3 and Phi-4: Llama's layer, stored with q, k and v in one matrix, and gate and up in one."""

import torch
from torch import Tensor

from node.engine.layers.block import Block, DecoderBlock
from node.engine.layers.mlp import GatedMlp
from node.engine.models.parts import ReadTensor, attention_from, load_norm
from node.engine.rope import pair_channels
from plait.types import ModelSpec


def load_block(read: ReadTensor, spec: ModelSpec, layer: int) -> Block:
    """`read` gives this layer's tensors."""
    attention_norm = load_norm(read, "input_layernorm.weight", spec)
    qkv = _paired(read("self_attn.qkv_proj.weight"), spec)
    attention = attention_from(read, spec, layer, qkv)
    mlp_norm = load_norm(read, "post_attention_layernorm.weight", spec)
    gate_up = read.linear(read("mlp.gate_up_proj.weight"), None)
    down = read.joins.out(read.linear(read("mlp.down_proj.weight"), None))
    mlp = GatedMlp(gate_up, down, spec.activation)
    return DecoderBlock(attention_norm, attention, mlp_norm, mlp)


def _paired(qkv: Tensor, spec: ModelSpec) -> Tensor:
    """q and k get their rotated channels in pairs."""
    num_queries_keys = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    queries_keys, values = qkv[:num_queries_keys], qkv[num_queries_keys:]
    return torch.cat([pair_channels(queries_keys, spec), values])
