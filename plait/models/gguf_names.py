"""GGUF's names of a Llama-family model's tensors in Hugging Face's words."""

import re
from typing import Final

_TOP: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LEAVES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\.([a-z_]+)\.(weight|bias)")
ROPE_FACTORS: Final = "rope_freqs.weight"
"""Not a weight: llama3's per-frequency factors, folded into the spec."""


def to_hugging_face(name: str) -> str | None:
    """The Hugging Face name, None for a tensor that the family does not have."""
    if name in _TOP:
        return _TOP[name]
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _LEAVES:
        return None
    return f"model.layers.{int(match[1])}.{_LEAVES[match[2]]}.{match[3]}"
