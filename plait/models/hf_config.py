"""ModelSpec from Hugging Face's config.json and generation_config.json.

Defaults are those of transformers' configuration classes, for keys that a file leaves out.
"""

from typing import Final

from plait.errors import ModelError
from plait.models.fields import Fields
from plait.models.hf_families import with_family
from plait.models.hf_quantised import SECTION, quantisation_from_config
from plait.models.hf_rope import (
    THETA,
    check_factors,
    rope_from_config,
    rotary_dim_from_config,
)
from plait.models.hf_windows import windows_from_config
from plait.types import Architecture, ModelId, ModelSpec

NUM_LAYERS_MAX: Final = 4096
_A = Architecture
_KV_HEADS: Final = {
    _A.MISTRAL: 8,
    _A.MIXTRAL: 8,
    _A.GPT_OSS: 8,
    _A.QWEN2: 32,
    _A.QWEN3: 32,
    _A.QWEN3_MOE: 4,
    _A.GEMMA2: 4,
    _A.GEMMA3: 4,
    _A.SMOLLM3: 4,
}
_CONTEXT_TOKENS: Final = {
    _A.LLAMA: 2048,
    _A.PHI3: 4096,
    _A.GEMMA2: 8192,
    _A.QWEN2: 32768,
    _A.QWEN3: 32768,
    _A.QWEN3_MOE: 32768,
    _A.SMOLLM3: 32768,
}
_NUM_HEADS: Final = {_A.GEMMA3: 8}
_VOCAB_SIZE: Final = {_A.GEMMA3: 262_208}
"""Published files of Gemma 3 leave these out."""

_HEAD_DIM: Final = {_A.QWEN3: 128, _A.GEMMA2: 256, _A.GEMMA3: 256, _A.GPT_OSS: 64}
_ROPE_THETA: Final = {
    _A.GEMMA3: 1_000_000.0,
    _A.MIXTRAL: 1_000_000.0,
    _A.SMOLLM3: 2_000_000.0,
    _A.GPT_OSS: 150_000.0,
}
_NORM_EPS: Final = {_A.PHI3: 1e-5, _A.MIXTRAL: 1e-5, _A.GPT_OSS: 1e-5}
_TIED: Final = frozenset((_A.GEMMA2, _A.GEMMA3, _A.SMOLLM3))
_MAY_BE_BIASED: Final = _TIED | {_A.LLAMA, _A.QWEN3, _A.QWEN3_MOE}
_BIASED: Final = frozenset((_A.GPT_OSS,))
_MODEL_TYPES: Final = {"gemma3_text": _A.GEMMA3}


def spec_from_config(config: Fields, generation: Fields | None, model_id: ModelId) -> ModelSpec:
    """The model's shape.

    Raises:
        ModelError: an architecture or a variant of it that plait does not run, or nonsense.
    """
    end_ids = _end_ids(config, generation)
    architecture = _architecture(config)
    config = _text_part(config, architecture)
    _refuse_variants(config, architecture)
    hidden = config.count("hidden_size")
    num_heads = config.count("num_attention_heads", _NUM_HEADS.get(architecture))
    num_layers = config.count("num_hidden_layers")
    if num_layers > NUM_LAYERS_MAX:
        raise ModelError(
            f"{config.where} claims {num_layers} layers", reason="model_config_invalid"
        )
    context = config.count("max_position_embeddings", _CONTEXT_TOKENS.get(architecture, 131072))
    theta, scaling = rope_from_config(
        config, context, default_theta=_ROPE_THETA.get(architecture, THETA)
    )
    head_dim = _head_dim(config, architecture, hidden, num_heads)
    rotary_dim = rotary_dim_from_config(config, head_dim, may_be_partial=architecture is _A.PHI3)
    check_factors(scaling, rotary_dim or head_dim, config.where)
    window, full_layers = windows_from_config(config, architecture, num_layers, context)
    has_bias = architecture in _MAY_BE_BIASED | _BIASED and config.flag(
        "attention_bias", default=architecture in _BIASED
    )
    spec = ModelSpec(
        model_id=model_id,
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=_kv_heads(config, architecture, num_heads),
        head_dim=head_dim,
        vocab_size=config.count("vocab_size", _VOCAB_SIZE.get(architecture)),
        context_tokens_max=context,
        norm_eps=config.number("rms_norm_eps", _NORM_EPS.get(architecture, 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        rotary_dim=rotary_dim,
        tie_embeddings=config.flag("tie_word_embeddings", default=architecture in _TIED),
        attention_bias=architecture is _A.QWEN2 or has_bias,
        attention_output_bias=has_bias,
        mlp_bias=architecture in (_A.LLAMA, _A.SMOLLM3) and config.flag("mlp_bias", default=False),
        qk_norm=architecture is _A.QWEN3,
        sliding_window_tokens=window,
        full_attention_layers=full_layers,
        eos_token_ids=end_ids or _end_ids(config, None),
    )
    return with_family(spec, config)


def _architecture(config: Fields) -> Architecture:
    name = config.text("model_type", "unknown")
    if name in _MODEL_TYPES:
        return _MODEL_TYPES[name]
    try:
        return Architecture(name)
    except ValueError:
        known = ", ".join(Architecture)
        raise ModelError(
            f"{config.where} describes a {name!r} model; plait runs these: {known}",
            reason="model_unsupported",
        ) from None


def _text_part(config: Fields, architecture: Architecture) -> Fields:
    """A model that also sees pictures has its language model's settings in a section."""
    if architecture is not Architecture.GEMMA3:
        return config
    return config.section("text_config") or config


def _refuse_variants(config: Fields, architecture: Architecture) -> None:
    quantisation = config.section(SECTION)
    if quantisation is not None:
        is_coded = quantisation_from_config(config) is not None
        if is_coded is (architecture is Architecture.GPT_OSS):
            method = quantisation.text("quant_method")
            raise _unsupported(config, f"weights of this family quantised with {method!r}")
    is_gemma = architecture in (Architecture.GEMMA2, Architecture.GEMMA3)
    if not is_gemma and config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise _unsupported(config, f"the activation {config.text('hidden_act')!r}")


def _kv_heads(config: Fields, architecture: Architecture, num_heads: int) -> int:
    usual = _KV_HEADS.get(architecture, num_heads)
    num_kv_heads = config.count("num_key_value_heads", min(usual, num_heads))
    if num_heads % num_kv_heads != 0:
        raise ModelError(
            f"{config.where}: {num_heads} heads cannot share {num_kv_heads} key/value heads",
            reason="model_config_invalid",
        )
    return num_kv_heads


def _head_dim(config: Fields, architecture: Architecture, hidden: int, num_heads: int) -> int:
    default = _HEAD_DIM.get(architecture, max(1, hidden // num_heads))
    head_dim = config.count("head_dim", default)
    if head_dim % 2 != 0:
        raise ModelError(
            f"{config.where}: heads of width {head_dim} cannot be rotated in pairs",
            reason="model_config_invalid",
        )
    return head_dim


def _end_ids(config: Fields, generation: Fields | None) -> tuple[int, ...]:
    ids = generation.token_ids("eos_token_id") if generation is not None else ()
    return ids or config.token_ids("eos_token_id")


def _unsupported(config: Fields, what: str) -> ModelError:
    return ModelError(
        f"{config.where} asks for {what}, which plait does not run", reason="model_unsupported"
    )
