"""ModelSpec from a GGUF's metadata and tensor list."""

from typing import Final

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from plait.errors import ModelError
from plait.models.bytestore import ByteStore
from plait.models.fields import Fields
from plait.models.gguf_families import with_family
from plait.models.gguf_header import GgufHeader
from plait.models.gguf_names import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from plait.models.hf_rope import check_factors
from plait.models.llama3_rope import scaling_from_factors
from plait.types import Architecture, ModelId, ModelSpec, RopeScaling

_ARCHITECTURES: Final = {
    "llama": Architecture.LLAMA,  # Llama, SmolLM2, Mistral; with experts Mixtral
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
    "phi3": Architecture.PHI3,
    "gemma2": Architecture.GEMMA2,
    "gemma3": Architecture.GEMMA3,
    "qwen3moe": Architecture.QWEN3_MOE,
    "smollm3": Architecture.SMOLLM3,
    "gpt-oss": Architecture.GPT_OSS,
}
_WITH_EXPERTS: Final = (Architecture.MIXTRAL, Architecture.QWEN3_MOE, Architecture.GPT_OSS)
_END_IDS: Final = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)
NUM_LAYERS_MAX: Final = 4096
_ROPE_UNKNOWN: Final = (
    "attn_factor",
    "yarn_log_multiplier",
    "yarn_ext_factor",
    "yarn_attn_factor",
)


def spec_from_gguf(header: GgufHeader, store: ByteStore, model_id: ModelId) -> ModelSpec:
    """The model's shape.

    Raises:
        ModelError: an architecture or a variant of it that plait does not run.
    """
    fields = Fields(header.metadata, store.label)
    name = fields.text("general.architecture")
    if name not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelError(
            f"{store.label} is a {name!r} model; plait runs GGUFs of these architectures: {known} "
            "(llama includes Mistral, Mixtral and SmolLM2)",
            reason="model_unsupported",
        )
    _refuse_parts(fields, store)
    architecture = _architecture(fields, name)
    hidden = fields.count(f"{name}.embedding_length")
    num_heads = fields.count(f"{name}.attention.head_count")
    head_dim = _head_dim(fields, name, hidden, num_heads)
    num_layers = fields.count(f"{name}.block_count")
    context = fields.count(f"{name}.context_length")
    if num_layers > NUM_LAYERS_MAX:
        raise ModelError(f"{store.label} claims {num_layers} layers", reason="model_config_invalid")
    has_experts = fields.has(f"{name}.expert_feed_forward_length")
    embedding = header.tensors.get("token_embd.weight")
    rotary_dim = _rotary_dim(fields, name, head_dim)
    scaling = _rope_scaling(fields, name, header, store)
    check_factors(scaling, rotary_dim or head_dim, store.label)
    spec = ModelSpec(
        model_id=model_id,
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=fields.count(
            f"{name}.feed_forward_length",
            fields.count(f"{name}.expert_feed_forward_length", 1) if has_experts else None,
        ),
        num_heads=num_heads,
        num_kv_heads=fields.count(f"{name}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[0] if embedding else fields.count(f"{name}.vocab_size"),
        context_tokens_max=context,
        norm_eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number(f"{name}.rope.freq_base", 10000.0),
        rope_scaling=scaling,
        rotary_dim=rotary_dim,
        tie_embeddings="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        attention_output_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        sliding_window_tokens=_window(fields, name, context),
        eos_token_ids=tuple(dict.fromkeys(i for k in _END_IDS for i in fields.token_ids(k))),
    )
    return with_family(spec, fields, name)


def _architecture(fields: Fields, name: str) -> Architecture:
    """Raises ModelError for experts in a family that has none."""
    architecture = _ARCHITECTURES[name]
    if fields.values.get(f"{name}.expert_count") and architecture not in _WITH_EXPERTS:
        if architecture is Architecture.LLAMA:
            return Architecture.MIXTRAL
        raise ModelError(
            f"{fields.where} is a mixture of experts of {name}, which plait does not run",
            reason="model_unsupported",
        )
    return architecture


def _refuse_parts(fields: Fields, store: ByteStore) -> None:
    if fields.has("split.count") and fields.count("split.count") > 1:
        raise ModelError(
            f"{store.label} is one of several parts; join them first: "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf",
            reason="model_unsupported",
        )


def _head_dim(fields: Fields, name: str, hidden: int, num_heads: int) -> int:
    head_dim = fields.count(f"{name}.attention.key_length", max(1, hidden // num_heads))
    _require_width(fields, f"{name}.attention.value_length", head_dim)
    return head_dim


def _rotary_dim(fields: Fields, name: str, head_dim: int) -> int | None:
    """How many channels are rotated, None for all; a part of them in Phi-3 only."""
    key = f"{name}.rope.dimension_count"
    rotary_dim = fields.count(key, head_dim)
    if rotary_dim == head_dim:
        return None
    if _ARCHITECTURES[name] is not Architecture.PHI3 or rotary_dim > head_dim or rotary_dim % 2:
        _require_width(fields, key, head_dim)
    return rotary_dim


def _require_width(fields: Fields, key: str, head_dim: int) -> None:
    if fields.count(key, head_dim) != head_dim:
        raise ModelError(
            f"{fields.where}: {key} differs from the heads' width {head_dim}, which plait "
            "does not run",
            reason="model_unsupported",
        )


def _window(fields: Fields, name: str, context: int) -> int | None:
    key = f"{name}.attention.sliding_window"
    if name != "llama" or not fields.values.get(key):
        return None  # Qwen's files carry a window that its models do not use
    window = fields.count(key)
    return window if window < context else None


def _rope_scaling(
    fields: Fields, name: str, header: GgufHeader, store: ByteStore
) -> RopeScaling | None:
    kind = fields.text(f"{name}.rope.scaling.type", "none")
    if LONG_FACTORS in header.tensors:
        return _longrope(fields, name, header, store)
    if kind in ("linear", "yarn"):
        for leaf in _ROPE_UNKNOWN:
            if fields.has(f"{name}.rope.scaling.{leaf}"):
                raise ModelError(
                    f"{store.label}: rope scaling with {leaf} is not supported",
                    reason="model_unsupported",
                )
        return RopeScaling(
            kind=kind,
            factor=fields.number(f"{name}.rope.scaling.factor"),
            original_context_tokens=fields.count(
                f"{name}.rope.scaling.original_context_length",
                fields.count(f"{name}.context_length"),
            ),
            beta_fast=fields.number(f"{name}.rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number(f"{name}.rope.scaling.yarn_beta_slow", 1.0),
        )
    if kind != "none":
        raise ModelError(
            f"{store.label}: rope scaling {kind!r} is not supported", reason="model_unsupported"
        )
    if ROPE_FACTORS not in header.tensors:
        return None
    return scaling_from_factors(
        _factors(header, store, ROPE_FACTORS),
        rope_theta=fields.number(f"{name}.rope.freq_base", 10000.0),
        where=store.label,
    )


def _longrope(fields: Fields, name: str, header: GgufHeader, store: ByteStore) -> RopeScaling:
    """Phi-3's factors, of short and of long sequences."""
    context = fields.count(f"{name}.context_length")
    original = fields.count(f"{name}.rope.scaling.original_context_length", context)
    scale = f"{name}.rope.scaling.attn_factor"
    return RopeScaling(
        kind="longrope",
        factor=context / original,
        original_context_tokens=original,
        attention_factor=fields.number(scale) if fields.has(scale) else None,
        short_factors=tuple(_factors(header, store, SHORT_FACTORS).tolist()),
        long_factors=tuple(_factors(header, store, LONG_FACTORS).tolist()),
    )


def _factors(header: GgufHeader, store: ByteStore, name: str) -> NDArray[np.float64]:
    """A small float32 tensor. Raises ModelError where it is missing or another type."""
    tensor = header.tensors.get(name)
    if tensor is None or tensor.quant is not GGMLQuantizationType.F32:
        raise ModelError(f"{store.label} has no {name} in float32", reason="model_unsupported")
    raw = store.read_at(tensor.offset, tensor.num_bytes)
    return np.frombuffer(raw, dtype="<f4").astype(np.float64)
