"""What a config.json says that only its family has."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from plait.errors import ModelError
from plait.models.fields import Fields
from plait.models.hf_rope import local_theta_from_config
from plait.types import Activation, Architecture, ModelSpec

GELU_TANH: Final = ("gelu_pytorch_tanh", "gelu_tanh")
_CLAMP, _SLOPE = 7.0, 1.702


def with_family(spec: ModelSpec, config: Fields) -> ModelSpec:
    """`spec` with its family's own settings. Raises ModelError."""
    finish = _FAMILIES.get(spec.architecture)
    return spec if finish is None else finish(spec, config)


def gemma_settings(spec: ModelSpec) -> ModelSpec:
    """What all Gemmas have, wherever their shape is read from."""
    return replace(
        spec,
        activation=Activation.GELU_TANH,
        embedding_scale=math.sqrt(spec.hidden_size),
        post_norms=True,
        qk_norm=spec.architecture is Architecture.GEMMA3,
    )


def gpt_oss_settings(spec: ModelSpec) -> ModelSpec:
    """What all gpt-oss models have, wherever their shape is read from."""
    return replace(spec, activation=Activation.CLAMPED_SWIGLU, mlp_bias=True, attention_sinks=True)


def unrotated_layers(num_layers: int, every: int = 4) -> tuple[int, ...]:
    """SmolLM3's layers without rotation: the last one of each group."""
    return tuple(range(every - 1, num_layers, every))


def _gemma2(spec: ModelSpec, config: Fields) -> ModelSpec:
    return replace(
        _gemma(spec, config),
        attention_softcap=_cap(config, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(config, "final_logit_softcapping", 30.0),
    )


def _gemma3(spec: ModelSpec, config: Fields) -> ModelSpec:
    return replace(
        _gemma(spec, config),
        attention_softcap=_cap(config, "attn_logit_softcapping", None),
        logit_softcap=_cap(config, "final_logit_softcapping", None),
        local_rope_theta=local_theta_from_config(config, 10000.0),
    )


def _gemma(spec: ModelSpec, config: Fields) -> ModelSpec:
    if config.values.get("use_bidirectional_attention"):
        raise _unsupported(config, "attention in both directions")
    name = config.text("hidden_activation", GELU_TANH[0])
    if name not in GELU_TANH:
        raise _unsupported(config, f"the activation {name!r}")
    scale = config.number("query_pre_attn_scalar", 256.0) ** -0.5
    return replace(gemma_settings(spec), attention_scale=scale)


def _mixtral(spec: ModelSpec, config: Fields) -> ModelSpec:
    return _with_experts(spec, config, "num_local_experts", num_default=8, chosen_default=2)


def _qwen3_moe(spec: ModelSpec, config: Fields) -> ModelSpec:
    if config.values.get("mlp_only_layers") or config.count("decoder_sparse_step", 1) != 1:
        raise _unsupported(config, "experts in some layers only")
    spec = replace(
        spec,
        qk_norm=True,
        intermediate_size=config.count("moe_intermediate_size", 768),
        renormalises_experts=config.flag("norm_topk_prob", default=False),
    )
    key = "num_experts" if config.has("num_experts") else "num_local_experts"
    return _with_experts(spec, config, key, num_default=128, chosen_default=8)


def _gpt_oss(spec: ModelSpec, config: Fields) -> ModelSpec:
    for key, usual in (("swiglu_limit", _CLAMP), ("swiglu_alpha", _SLOPE)):
        if config.number(key, usual) != usual:
            raise _unsupported(config, f"{key} other than {usual}")
    spec = gpt_oss_settings(spec)
    return _with_experts(spec, config, "num_local_experts", num_default=128, chosen_default=4)


def _with_experts(
    spec: ModelSpec, config: Fields, key: str, *, num_default: int, chosen_default: int
) -> ModelSpec:
    num_experts = config.count(key, num_default)
    key = "num_experts_per_tok"
    if not config.has(key) and config.has("experts_per_token"):
        key = "experts_per_token"
    chosen = config.count(key, chosen_default)
    return replace(
        spec,
        num_experts=num_experts,
        experts_per_token=checked_choice(chosen, num_experts, config.where),
    )


def checked_choice(chosen: int, num_experts: int, where: str) -> int:
    """`chosen` experts of so many. Raises ModelError."""
    if not chosen <= num_experts <= NUM_EXPERTS_MAX:
        raise ModelError(
            f"{where}: {chosen} of {num_experts} experts cannot be chosen",
            reason="model_config_invalid",
        )
    return chosen


NUM_EXPERTS_MAX: Final = 1024


def _smollm3(spec: ModelSpec, config: Fields) -> ModelSpec:
    flags = config.values.get("no_rope_layers")
    if flags is None:
        every = config.count("no_rope_layer_interval", 4)
        return replace(spec, unrotated_layers=unrotated_layers(spec.num_layers, every))
    if not isinstance(flags, list) or len(flags) < spec.num_layers:
        raise ModelError(
            f"{config.where}: no_rope_layers does not speak of all {spec.num_layers} layers",
            reason="model_config_invalid",
        )
    layers = tuple(layer for layer in range(spec.num_layers) if not flags[layer])
    return replace(spec, unrotated_layers=layers)


def _cap(config: Fields, key: str, default: float | None) -> float | None:
    """A soft cap; null in the file means none."""
    if config.has(key):
        return config.number(key)
    return None if key in config.values else default


def _unsupported(config: Fields, what: str) -> ModelError:
    return ModelError(
        f"{config.where} asks for {what}, which plait does not run", reason="model_unsupported"
    )


_FAMILIES: Final[Mapping[Architecture, Callable[[ModelSpec, Fields], ModelSpec]]] = {
    Architecture.GEMMA2: _gemma2,
    Architecture.GEMMA3: _gemma3,
    Architecture.MIXTRAL: _mixtral,
    Architecture.QWEN3_MOE: _qwen3_moe,
    Architecture.SMOLLM3: _smollm3,
    Architecture.GPT_OSS: _gpt_oss,
}
