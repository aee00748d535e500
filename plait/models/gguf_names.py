"""Where a GGUF has a tensor: llama.cpp's names for those that all of plait uses."""

import re
from dataclasses import dataclass
from typing import Final

from plait.types import Architecture, ModelSpec

_TOP: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LEAVES: Final = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_GEMMA: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OWN: Final = {
    Architecture.GEMMA2: _GEMMA,
    Architecture.GEMMA3: _GEMMA,
    Architecture.GPT_OSS: {"post_attention_layernorm": "post_attention_norm"},
}
"""Names that a family has otherwise."""

_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_SINKS: Final = re.compile(r"model\.layers\.(\d+)\.self_attn\.sinks")
_EXPERT: Final = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj")
ROPE_FACTORS: Final = "rope_freqs.weight"
"""Not a weight: llama3's per-frequency factors, folded into the spec."""

LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Not weights: longrope's factors, folded into the spec too."""

NOT_WEIGHTS: Final = frozenset((ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS))


@dataclass(frozen=True, slots=True)
class GgufName:
    """A tensor in the file, and which one of it where experts are stacked."""

    stored: str
    expert: int | None = None


def gguf_name(spec: ModelSpec, name: str) -> GgufName:
    """Where a GGUF of this family has `name`, one of `span_tensor_names`."""
    if name in _TOP:
        return GgufName(_TOP[name])
    sinks = _SINKS.fullmatch(name)
    if sinks is not None:
        return GgufName(f"blk.{sinks[1]}.attn_sinks.weight")
    layer = _LAYER.fullmatch(name)
    assert layer is not None, name
    number, leaf, kind = layer.groups()
    expert = _EXPERT.fullmatch(leaf)
    if expert is not None:
        return GgufName(f"blk.{number}.ffn_{expert[2]}_exps.{kind}", int(expert[1]))
    own = _OWN.get(spec.architecture, {}).get(leaf)
    return GgufName(f"blk.{number}.{own or _LEAVES[leaf]}.{kind}")
