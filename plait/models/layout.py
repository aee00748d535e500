"""Which tensors a model of a given shape consists of, and what each must look like."""

from collections.abc import Mapping

from plait.errors import WeightsError
from plait.models.source import span_tensor_names
from plait.types import ModelSpec


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the model, by Hugging Face's name."""
    q_width = spec.num_heads * spec.head_dim
    kv_width = spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_size, spec.intermediate_size
    leaves: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.q_proj.bias": (q_width,),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.k_proj.bias": (kv_width,),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.bias": (kv_width,),
        "self_attn.o_proj.weight": (hidden, q_width),
        "self_attn.o_proj.bias": (hidden,),
        "self_attn.q_norm.weight": (spec.head_dim,),
        "self_attn.k_norm.weight": (spec.head_dim,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.gate_proj.bias": (inner,),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.up_proj.bias": (inner,),
        "mlp.down_proj.weight": (hidden, inner),
        "mlp.down_proj.bias": (hidden,),
    }
    top: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (spec.vocab_size, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name in span_tensor_names(spec, spec.whole):
        shapes[name] = top[name] if name in top else leaves[name.split(".", 3)[3]]
    return shapes


def check_layout(
    spec: ModelSpec, found: Mapping[str, tuple[int, ...]], *, where: Mapping[str, str]
) -> None:
    """Hold the tensors' shapes in the files' headers against the model's shape.

    Args:
        found: shape by Hugging Face's name.
        where: file by Hugging Face's name; the entry "" names the model as a whole.

    Raises:
        WeightsError: a tensor is missing or has another shape; says which, and in which file.
    """
    for name, shape in expected_shapes(spec).items():
        if name not in found:
            raise WeightsError(
                f"{where['']} has no tensor {name}, which a {spec.architecture} model of "
                f"{spec.num_layers} layers needs",
                reason="weights_incomplete",
            )
        if found[name] != shape:
            raise WeightsError(
                f"{where[name]}: tensor {name} has shape {found[name]}, the model's "
                f"configuration asks for {shape}",
                reason="weights_disagree",
            )
