"""The shape each tensor of a model must have, from its spec."""

from plait.types import ModelSpec


def tensor_shape(spec: ModelSpec, name: str) -> tuple[int, ...]:
    """Shape of a tensor by its Hugging Face name. Raises KeyError for a name no stage uses."""
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return (spec.vocab_size, spec.hidden_size)
    if name == "model.norm.weight":
        return (spec.hidden_size,)
    leaf = name.split(".", 3)[3]
    return _layer_shapes(spec)[leaf]


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    q_width = spec.num_heads * spec.head_dim
    kv_width = spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_norm.weight": (spec.head_dim,),
        "self_attn.k_norm.weight": (spec.head_dim,),
    }
    products = {
        "self_attn.q_proj": (q_width, hidden),
        "self_attn.k_proj": (kv_width, hidden),
        "self_attn.v_proj": (kv_width, hidden),
        "self_attn.o_proj": (hidden, q_width),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    for product, shape in products.items():
        shapes[f"{product}.weight"] = shape
        shapes[f"{product}.bias"] = shape[:1]
    return shapes
