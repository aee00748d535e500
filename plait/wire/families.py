"""What only some families of models have, to and from the wire."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from plait.errors import FrameError
from plait.types import Activation, ModelSpec, RopeScaling
from plait.wire.v1 import common_pb2

_NUM_EXPERTS_MAX: Final = 1024
_NUM_FACTORS_MAX: Final = 1024
_NUMBERS: Final = (
    "local_rope_theta",
    "attention_scale",
    "attention_softcap",
    "embedding_scale",
    "logit_softcap",
    "stored_layer_bits",
    "stored_end_bits",
)


def add_family(message: common_pb2.ModelSpec, spec: ModelSpec) -> None:
    """Write into `message` what the family of `spec` has of its own."""
    message.full_attention_layers.extend(spec.full_attention_layers)
    message.unrotated_layers.extend(spec.unrotated_layers)
    if spec.rotary_dim is not None:
        message.rotary_dim = spec.rotary_dim
    message.attention_sinks = spec.attention_sinks
    message.post_norms = spec.post_norms
    message.activation = spec.activation
    message.num_experts = spec.num_experts
    message.experts_per_token = spec.experts_per_token
    message.keeps_expert_shares = not spec.renormalises_experts
    for name in _NUMBERS:
        value = getattr(spec, name)
        if value is not None:
            setattr(message, name, value)


def with_family(spec: ModelSpec, message: common_pb2.ModelSpec) -> ModelSpec:
    """`spec` with what `message` says of its family. Raises FrameError for what cannot be."""
    try:
        activation = Activation(message.activation or Activation.SILU)
    except ValueError:
        raise _invalid(f"an unknown activation {message.activation!r}") from None
    chosen, num_experts = message.experts_per_token, message.num_experts
    if num_experts > _NUM_EXPERTS_MAX or chosen > num_experts or (num_experts and not chosen):
        raise _invalid(f"{chosen} of {num_experts} experts")
    rotary_dim = message.rotary_dim if message.HasField("rotary_dim") else None
    if rotary_dim is not None and (rotary_dim % 2 or not 2 <= rotary_dim <= spec.head_dim):
        raise _invalid(f"{rotary_dim} rotated channels of {spec.head_dim}")
    return replace(
        spec,
        full_attention_layers=_layers(message.full_attention_layers, spec),
        unrotated_layers=_layers(message.unrotated_layers, spec),
        rotary_dim=rotary_dim,
        attention_sinks=message.attention_sinks,
        post_norms=message.post_norms,
        activation=activation,
        num_experts=num_experts,
        experts_per_token=chosen,
        renormalises_experts=not message.keeps_expert_shares,
        local_rope_theta=_number(message, "local_rope_theta"),
        attention_scale=_number(message, "attention_scale"),
        attention_softcap=_number(message, "attention_softcap"),
        embedding_scale=_number(message, "embedding_scale"),
        logit_softcap=_number(message, "logit_softcap"),
        stored_layer_bits=_number(message, "stored_layer_bits"),
        stored_end_bits=_number(message, "stored_end_bits"),
    )


def rope_to_proto(scaling: RopeScaling) -> common_pb2.RopeScaling:
    """All of it, whatever its kind."""
    return common_pb2.RopeScaling(
        kind=scaling.kind,
        factor=scaling.factor,
        low_freq_factor=scaling.low_freq_factor,
        high_freq_factor=scaling.high_freq_factor,
        original_context_tokens=scaling.original_context_tokens,
        attention_factor=scaling.attention_factor,
        beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow,
        keeps_fractions=not scaling.truncates,
        short_factors=scaling.short_factors,
        long_factors=scaling.long_factors,
    )


def rope_from_proto(message: common_pb2.RopeScaling) -> RopeScaling:
    """Absent fields take their defaults. Raises FrameError for too many factors."""
    if max(len(message.short_factors), len(message.long_factors)) > _NUM_FACTORS_MAX:
        raise _invalid("too many factors of its rotations")
    return RopeScaling(
        kind=message.kind,
        factor=message.factor,
        low_freq_factor=message.low_freq_factor,
        high_freq_factor=message.high_freq_factor,
        original_context_tokens=message.original_context_tokens,
        attention_factor=(
            message.attention_factor if message.HasField("attention_factor") else None
        ),
        beta_fast=message.beta_fast if message.HasField("beta_fast") else 32.0,
        beta_slow=message.beta_slow if message.HasField("beta_slow") else 1.0,
        truncates=not message.keeps_fractions,
        short_factors=tuple(message.short_factors),
        long_factors=tuple(message.long_factors),
    )


def _layers(layers: Sequence[int], spec: ModelSpec) -> tuple[int, ...]:
    if len(layers) > spec.num_layers or any(layer >= spec.num_layers for layer in layers):
        raise _invalid(f"a layer beyond its {spec.num_layers}")
    return tuple(layers)


def _number(message: common_pb2.ModelSpec, name: str) -> float | None:
    if not message.HasField(name):  # type: ignore[arg-type]
        return None
    value = float(getattr(message, name))
    if not math.isfinite(value) or value <= 0.0:
        raise _invalid(f"{name} {value}")
    return value


def _invalid(what: str) -> FrameError:
    return FrameError(f"a model with {what}", reason="model_invalid")
