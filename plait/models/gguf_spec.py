"""ModelSpec from a GGUF's metadata and tensor list."""

from typing import Final

import numpy as np

from plait.errors import ModelError
from plait.models.bytestore import ByteStore
from plait.models.fields import Fields
from plait.models.gguf_header import GgufHeader
from plait.models.gguf_names import ROPE_FACTORS, to_hugging_face
from plait.models.llama3_rope import scaling_from_factors
from plait.types import Architecture, ModelId, ModelSpec, RopeScaling

_ARCHITECTURES: Final = {
    "llama": Architecture.LLAMA,  # Llama, SmolLM2 and Mistral
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
}
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
    "yarn_beta_fast",
    "yarn_beta_slow",
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
            "(llama includes Mistral and SmolLM2)",
            reason="model_unsupported",
        )
    _refuse_variants(fields, name, header, store)
    hidden = fields.count(f"{name}.embedding_length")
    num_heads = fields.count(f"{name}.attention.head_count")
    head_dim = _head_dim(fields, name, hidden, num_heads)
    num_layers = fields.count(f"{name}.block_count")
    context = fields.count(f"{name}.context_length")
    if num_layers > NUM_LAYERS_MAX:
        raise ModelError(f"{store.label} claims {num_layers} layers", reason="model_config_invalid")
    embedding = header.tensors.get("token_embd.weight")
    return ModelSpec(
        model_id=model_id,
        architecture=_ARCHITECTURES[name],
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=fields.count(f"{name}.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.count(f"{name}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[0] if embedding else fields.count(f"{name}.vocab_size"),
        context_tokens_max=context,
        norm_eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number(f"{name}.rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(fields, name, header, store),
        tie_embeddings="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        attention_output_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        sliding_window_tokens=_window(fields, name, context),
        eos_token_ids=tuple(dict.fromkeys(i for k in _END_IDS for i in fields.token_ids(k))),
    )


def _refuse_variants(fields: Fields, name: str, header: GgufHeader, store: ByteStore) -> None:
    if fields.has("split.count") and fields.count("split.count") > 1:
        raise ModelError(
            f"{store.label} is one of several parts; join them first: "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf",
            reason="model_unsupported",
        )
    if fields.values.get(f"{name}.expert_count"):
        raise ModelError(
            f"{store.label} is a mixture of experts, which plait does not run",
            reason="model_unsupported",
        )
    for tensor in header.tensors:
        if tensor != ROPE_FACTORS and to_hugging_face(tensor) is None:
            raise ModelError(
                f"{store.label}: tensor {tensor} is not part of a {name} model that plait runs",
                reason="model_unsupported",
            )


def _head_dim(fields: Fields, name: str, hidden: int, num_heads: int) -> int:
    head_dim = fields.count(f"{name}.attention.key_length", max(1, hidden // num_heads))
    for key in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
        if fields.count(key, head_dim) != head_dim:
            raise ModelError(
                f"{fields.where}: {key} differs from the heads' width {head_dim}, which plait "
                "does not run",
                reason="model_unsupported",
            )
    return head_dim


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
        )
    if kind != "none":
        raise ModelError(
            f"{store.label}: rope scaling {kind!r} is not supported", reason="model_unsupported"
        )
    tensor = header.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    raw = store.read_at(tensor.offset, tensor.num_bytes)
    factors = np.frombuffer(raw, dtype="<f4").astype(np.float64)
    return scaling_from_factors(
        factors, rope_theta=fields.number(f"{name}.rope.freq_base", 10000.0), where=store.label
    )
