"""What a GGUF says, or leaves to its reader, that only its family has.

llama.cpp's converter leaves out what is the same for all published models of a family; the values
here are theirs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from plait.models.fields import Fields
from plait.models.hf_families import (
    checked_choice,
    gemma_settings,
    gpt_oss_settings,
    unrotated_layers,
)
from plait.types import Architecture, ModelSpec

_WIDE_GEMMA_LAYERS: Final = {Architecture.GEMMA2: 46, Architecture.GEMMA3: 62}
"""Layers of the 27B models, whose scale comes from the hidden width instead of the heads'."""


def with_family(spec: ModelSpec, fields: Fields, name: str) -> ModelSpec:
    """`spec` with its family's own settings. `name` is the file's own of its architecture. Raises
    ModelError."""
    finish = _FAMILIES.get(spec.architecture)
    return spec if finish is None else finish(spec, fields, name)


def _phi3(spec: ModelSpec, fields: Fields, name: str) -> ModelSpec:
    return _windowed(spec, fields, name, range(0))


def _gemma2(spec: ModelSpec, fields: Fields, name: str) -> ModelSpec:
    spec = _windowed(_gemma(spec), fields, name, range(1, spec.num_layers, 2))
    return replace(
        spec,
        attention_softcap=fields.number(f"{name}.attn_logit_softcapping", 50.0),
        logit_softcap=fields.number(f"{name}.final_logit_softcapping", 30.0),
    )


def _gemma3(spec: ModelSpec, fields: Fields, name: str) -> ModelSpec:
    every = fields.count(f"{name}.attention.sliding_window_pattern", 6)
    cap = f"{name}.final_logit_softcapping"
    spec = replace(
        _gemma(spec),
        local_rope_theta=fields.number(f"{name}.rope.freq_base_swa", 10000.0),
        logit_softcap=fields.number(cap) if fields.values.get(cap) else None,
    )
    return _windowed(spec, fields, name, range(every - 1, spec.num_layers, every))


def _gemma(spec: ModelSpec) -> ModelSpec:
    is_wide = spec.num_layers == _WIDE_GEMMA_LAYERS[spec.architecture]
    width = spec.hidden_size // spec.num_heads if is_wide else spec.head_dim
    return replace(gemma_settings(spec), attention_scale=float(width) ** -0.5)


def _gpt_oss(spec: ModelSpec, fields: Fields, name: str) -> ModelSpec:
    spec = _windowed(gpt_oss_settings(spec), fields, name, range(1, spec.num_layers, 2))
    scaling = spec.rope_scaling
    if scaling is not None:
        spec = replace(spec, rope_scaling=replace(scaling, truncates=False))
    return _with_experts(spec, fields, name)


def _smollm3(spec: ModelSpec, fields: Fields, name: str) -> ModelSpec:
    return replace(spec, unrotated_layers=unrotated_layers(spec.num_layers))


def _with_experts(spec: ModelSpec, fields: Fields, name: str) -> ModelSpec:
    num_experts = fields.count(f"{name}.expert_count")
    chosen = fields.count(f"{name}.expert_used_count")
    width = fields.count(f"{name}.expert_feed_forward_length", spec.intermediate_size)
    return replace(
        spec,
        num_experts=num_experts,
        experts_per_token=checked_choice(chosen, num_experts, fields.where),
        intermediate_size=width,
    )


def _windowed(spec: ModelSpec, fields: Fields, name: str, full_layers: range) -> ModelSpec:
    """With the file's window, where it is shorter than the context or goes with rotations of its
    own; `full_layers` see everything."""
    key = f"{name}.attention.sliding_window"
    if not fields.values.get(key):
        return replace(spec, local_rope_theta=None)
    window = fields.count(key)
    if window >= spec.context_tokens_max and spec.local_rope_theta is None:
        return spec
    return replace(spec, sliding_window_tokens=window, full_attention_layers=tuple(full_layers))


_FAMILIES: Final[Mapping[Architecture, Callable[[ModelSpec, Fields, str], ModelSpec]]] = {
    Architecture.PHI3: _phi3,
    Architecture.GEMMA2: _gemma2,
    Architecture.GEMMA3: _gemma3,
    Architecture.MIXTRAL: _with_experts,
    Architecture.QWEN3_MOE: _with_experts,
    Architecture.SMOLLM3: _smollm3,
    Architecture.GPT_OSS: _gpt_oss,
}
