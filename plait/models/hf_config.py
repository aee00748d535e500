"""ModelSpec from Hugging Face's config.json and generation_config.json.

Defaults are those of transformers' configuration classes, for keys that a file leaves out.
"""

from typing import Final

from plait.errors import ModelError
from plait.models.fields import Fields
from plait.models.hf_rope import rope_from_config
from plait.types import Architecture, ModelId, ModelSpec

NUM_LAYERS_MAX: Final = 4096
_KV_HEADS: Final = {Architecture.MISTRAL: 8, Architecture.QWEN2: 32, Architecture.QWEN3: 32}
_CONTEXT_TOKENS: Final = {
    Architecture.LLAMA: 2048,
    Architecture.MISTRAL: 131072,
    Architecture.QWEN2: 32768,
    Architecture.QWEN3: 32768,
}
_MISTRAL_WINDOW_TOKENS: Final = 4096


def spec_from_config(config: Fields, generation: Fields | None, model_id: ModelId) -> ModelSpec:
    """The model's shape.

    Raises:
        ModelError: an architecture or a variant of it that plait does not run, or nonsense.
    """
    architecture = _architecture(config)
    _refuse_variants(config)
    hidden = config.count("hidden_size")
    num_heads = config.count("num_attention_heads")
    num_layers = config.count("num_hidden_layers")
    if num_layers > NUM_LAYERS_MAX:
        raise ModelError(
            f"{config.where} claims {num_layers} layers", reason="model_config_invalid"
        )
    kv_default = min(_KV_HEADS.get(architecture, num_heads), num_heads)
    context = config.count("max_position_embeddings", _CONTEXT_TOKENS[architecture])
    theta, scaling = rope_from_config(config, context)
    is_qwen = architecture in (Architecture.QWEN2, Architecture.QWEN3)
    has_bias = architecture in (Architecture.LLAMA, Architecture.QWEN3) and config.flag(
        "attention_bias", default=False
    )
    num_kv_heads = _kv_heads(config, num_heads, kv_default)
    return ModelSpec(
        model_id=model_id,
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, architecture, hidden, num_heads),
        vocab_size=config.count("vocab_size"),
        context_tokens_max=context,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=config.flag("tie_word_embeddings", default=False),
        attention_bias=architecture is Architecture.QWEN2 or has_bias,
        attention_output_bias=has_bias,
        mlp_bias=architecture is Architecture.LLAMA and config.flag("mlp_bias", default=False),
        qk_norm=architecture is Architecture.QWEN3,
        sliding_window_tokens=_window(config, num_layers, context, is_qwen=is_qwen),
        eos_token_ids=_end_ids(config, generation),
    )


def _architecture(config: Fields) -> Architecture:
    name = config.text("model_type", "unknown")
    try:
        return Architecture(name)
    except ValueError:
        known = ", ".join(Architecture)
        raise ModelError(
            f"{config.where} describes a {name!r} model; plait runs these: {known}",
            reason="model_unsupported",
        ) from None


def _refuse_variants(config: Fields) -> None:
    quantisation = config.section("quantization_config")
    if quantisation is not None:
        method = quantisation.text("quant_method", "unknown")
        raise _unsupported(
            config, f"weights quantised with {method!r}; take the original or a GGUF"
        )
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise _unsupported(config, f"the activation {config.text('hidden_act')!r}")
    if config.number("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(config, "a partial rotary embedding")


def _kv_heads(config: Fields, num_heads: int, default: int) -> int:
    num_kv_heads = config.count("num_key_value_heads", default)
    if num_heads % num_kv_heads != 0:
        raise ModelError(
            f"{config.where}: {num_heads} heads cannot share {num_kv_heads} key/value heads",
            reason="model_config_invalid",
        )
    return num_kv_heads


def _head_dim(config: Fields, architecture: Architecture, hidden: int, num_heads: int) -> int:
    default = 128 if architecture is Architecture.QWEN3 else max(1, hidden // num_heads)
    head_dim = config.count("head_dim", default)
    if head_dim % 2 != 0:
        raise ModelError(
            f"{config.where}: heads of width {head_dim} cannot be rotated in pairs",
            reason="model_config_invalid",
        )
    return head_dim


def _window(config: Fields, num_layers: int, context: int, *, is_qwen: bool) -> int | None:
    """The window that all layers share, None for full attention. Raises ModelError if mixed."""
    if is_qwen:
        if not config.flag("use_sliding_window", default=False):
            return None
        num_full = _num_full_layers(config, num_layers)
        if num_full >= num_layers:
            return None
        if num_full > 0:
            raise _unsupported(config, "a sliding window in some layers only")
        window = config.count("sliding_window", _MISTRAL_WINDOW_TOKENS)
    elif config.text("model_type") == "mistral":
        if "sliding_window" in config.values and not config.has("sliding_window"):
            return None
        window = config.count("sliding_window", _MISTRAL_WINDOW_TOKENS)
    else:
        return None
    return window if window < context else None


def _num_full_layers(config: Fields, num_layers: int) -> int:
    """Layers with full attention of a Qwen that uses a window; listed, or the first ones."""
    kinds = config.values.get("layer_types")
    if isinstance(kinds, list):
        return kinds.count("full_attention") if len(kinds) == num_layers else 0
    num_full = config.values.get("max_window_layers", 28)
    if not isinstance(num_full, int) or num_full < 0:
        raise _unsupported(config, f"max_window_layers {num_full!r}")
    return num_full


def _end_ids(config: Fields, generation: Fields | None) -> tuple[int, ...]:
    ids = generation.token_ids("eos_token_id") if generation is not None else ()
    return ids or config.token_ids("eos_token_id")


def _unsupported(config: Fields, what: str) -> ModelError:
    return ModelError(
        f"{config.where} asks for {what}, which plait does not run", reason="model_unsupported"
    )
