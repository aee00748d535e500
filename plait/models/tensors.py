"""Which tensors a model consists of, by the names that all of plait uses, and their shapes.

The names are Hugging Face's, of the family that has a part by itself: experts are named one by one
(`mlp.experts.7.up_proj.weight`, their router `mlp.gate`), however a file stacks them.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from plait.types import Architecture, LayerSpan, ModelSpec

EMBEDDING: Final = "model.embed_tokens.weight"
FINAL_NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"
Shape = tuple[int, ...]


def span_tensor_names(spec: ModelSpec, span: LayerSpan) -> list[str]:
    """Names of the tensors that a holder of `span` needs, in the order they are used.

    The first span needs the embedding; the last one the final norm and the LM head, which is the
    embedding itself where the model ties them.
    """
    names: list[str] = []
    is_last = span.end == spec.num_layers
    if span.start == 0:
        names.append(EMBEDDING)
    for layer in range(span.start, span.end):
        names.extend(f"model.layers.{layer}.{leaf}" for leaf in layer_shapes(spec))
    if is_last:
        names.append(FINAL_NORM)
        head = EMBEDDING if spec.tie_embeddings else HEAD
        if head not in names:
            names.append(head)
    return names


def whole_tensor_names(spec: ModelSpec, span: LayerSpan) -> list[str]:
    """Those of `span_tensor_names` that a holder of `span` must read as a whole: not the embedding,
    whose rows can be looked up one by one, unless it is the LM head here too."""
    names = span_tensor_names(spec, span)
    is_head_too = spec.tie_embeddings and span.end == spec.num_layers
    return names if is_head_too else [name for name in names if name != EMBEDDING]


def tensor_shape(spec: ModelSpec, name: str) -> Shape:
    """Shape of a tensor by its name. Raises KeyError for a name that no stage uses."""
    if name in (EMBEDDING, HEAD):
        return (spec.vocab_size, spec.hidden_size)
    if name == FINAL_NORM:
        return (spec.hidden_size,)
    return layer_shapes(spec)[name.split(".", 3)[3]]


@lru_cache(maxsize=64)
def layer_shapes(spec: ModelSpec) -> Mapping[str, Shape]:
    """Shape of every tensor of a layer, by what follows `model.layers.N.`, as they are used."""
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    shapes.update(_attention_shapes(spec))
    shapes["post_attention_layernorm.weight"] = (hidden,)
    if spec.post_norms:
        shapes["pre_feedforward_layernorm.weight"] = (hidden,)
    if spec.num_experts:
        shapes.update(_linear("mlp.gate", (spec.num_experts, hidden), has_bias=spec.mlp_bias))
        for expert in range(spec.num_experts):
            shapes.update(_mlp_shapes(spec, f"mlp.experts.{expert}"))
    else:
        shapes.update(_mlp_shapes(spec, "mlp"))
    if spec.post_norms:
        shapes["post_feedforward_layernorm.weight"] = (hidden,)
    return shapes


def has_fused_products(spec: ModelSpec) -> bool:
    """Whether q, k and v lie in one matrix, and gate and up in another, as in Phi-3."""
    return spec.architecture is Architecture.PHI3


def _attention_shapes(spec: ModelSpec) -> dict[str, Shape]:
    hidden = spec.hidden_size
    q_width = spec.num_heads * spec.head_dim
    kv_width = spec.num_kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {}
    if has_fused_products(spec):
        shapes["self_attn.qkv_proj.weight"] = (q_width + 2 * kv_width, hidden)
    else:
        for kind, width in (("q", q_width), ("k", kv_width), ("v", kv_width)):
            name = f"self_attn.{kind}_proj"
            shapes.update(_linear(name, (width, hidden), has_bias=spec.attention_bias))
    if spec.qk_norm:
        shapes["self_attn.q_norm.weight"] = (spec.head_dim,)
        shapes["self_attn.k_norm.weight"] = (spec.head_dim,)
    if spec.attention_sinks:
        shapes["self_attn.sinks"] = (spec.num_heads,)
    out_shape = (hidden, q_width)
    shapes.update(_linear("self_attn.o_proj", out_shape, has_bias=spec.attention_output_bias))
    return shapes


def _mlp_shapes(spec: ModelSpec, prefix: str) -> dict[str, Shape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, Shape] = {}
    if has_fused_products(spec):
        shapes[f"{prefix}.gate_up_proj.weight"] = (2 * inner, hidden)
    else:
        for kind in ("gate", "up"):
            name = f"{prefix}.{kind}_proj"
            shapes.update(_linear(name, (inner, hidden), has_bias=spec.mlp_bias))
    shapes.update(_linear(f"{prefix}.down_proj", (hidden, inner), has_bias=spec.mlp_bias))
    return shapes


def _linear(name: str, shape: Shape, *, has_bias: bool) -> dict[str, Shape]:
    shapes = {f"{name}.weight": shape}
    if has_bias:
        shapes[f"{name}.bias"] = shape[:1]
    return shapes
