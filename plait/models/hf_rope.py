"""Rotary settings of a config.json, in the old keys (rope_theta, rope_scaling) and the new one
(rope_parameters), whose settings may be told apart by kind of layer."""

import math
from typing import Final

from plait.errors import ModelError
from plait.models.fields import Fields
from plait.types import RopeScaling

THETA: Final = 10000.0
FULL, SLIDING = "full_attention", "sliding_attention"
_KINDS: Final = ("linear", "dynamic", "yarn", "llama3", "longrope")


def rope_from_config(
    config: Fields, context_tokens: int, *, default_theta: float = THETA
) -> tuple[float, RopeScaling | None]:
    """Base and scaling. Raises ModelError for a scaling that plait does not run."""
    section = _section(config)
    theta = config.number("rope_theta", default_theta)
    if section is None:
        return theta, None
    theta = section.number("rope_theta", theta)
    kind = section.text("rope_type", section.text("type", "default"))
    if config.text("model_type", "") == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # what Phi-3's first files called it
    if kind == "default":
        return theta, None
    if kind not in _KINDS:
        raise _unsupported(section, f"rope scaling {kind!r} (supported: {', '.join(_KINDS)})")
    original = config.values.get("original_max_position_embeddings")
    default = original if isinstance(original, int) and original > 0 else context_tokens
    original_tokens = section.count("original_max_position_embeddings", default)
    is_long = kind == "longrope"
    return theta, RopeScaling(
        kind=kind,
        factor=section.number("factor", context_tokens / original_tokens if is_long else None),
        low_freq_factor=section.number("low_freq_factor", 1.0),
        high_freq_factor=section.number("high_freq_factor", 4.0),
        original_context_tokens=original_tokens,
        attention_factor=_attention_factor(section, kind),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncates=section.flag("truncate", default=True),
        short_factors=section.numbers("short_factor") if is_long else (),
        long_factors=section.numbers("long_factor") if is_long else (),
    )


def local_theta_from_config(config: Fields, default: float) -> float:
    """Base of the layers with a window, in families that give them their own."""
    section = config.section("rope_parameters")
    local = section.section(SLIDING) if section is not None else None
    if local is None:
        return config.number("rope_local_base_freq", default)
    if local.text("rope_type", "default") != "default":
        raise _unsupported(local, "scaled rotations in layers with a window")
    return local.number("rope_theta", default)


def rotary_dim_from_config(config: Fields, head_dim: int, *, may_be_partial: bool) -> int | None:
    """How many channels of a head are rotated, None for all. Raises ModelError."""
    section = _section(config)
    share = config.number("partial_rotary_factor", 1.0)
    if section is not None:
        share = section.number("partial_rotary_factor", share)
    rotary_dim = int(head_dim * share)
    if rotary_dim == head_dim:
        return None
    if not may_be_partial:
        raise _unsupported(config, "a partial rotary embedding")
    if not 2 <= rotary_dim < head_dim or rotary_dim % 2 or head_dim % 2:
        raise ModelError(
            f"{config.where}: {rotary_dim} of {head_dim} channels cannot be rotated in pairs",
            reason="model_config_invalid",
        )
    return rotary_dim


def check_factors(scaling: RopeScaling | None, rotary_dim: int, where: str) -> None:
    """longrope has a factor for each pair of channels, twice. Raises ModelError."""
    if scaling is None or scaling.kind != "longrope":
        return
    for factors in (scaling.short_factors, scaling.long_factors):
        if len(factors) != rotary_dim // 2:
            raise ModelError(
                f"{where}: {len(factors)} longrope factors for {rotary_dim // 2} pairs of channels",
                reason="model_config_invalid",
            )


def _section(config: Fields) -> Fields | None:
    """Of the layers that see everything, where kinds of layers are told apart."""
    section = config.section("rope_parameters") or config.section("rope_scaling")
    if section is None:
        return None
    return section.section(FULL) if isinstance(section.values.get(FULL), dict) else section


def _attention_factor(section: Fields, kind: str) -> float | None:
    """As given, or from DeepSeek's two mscales; None where the kind's own formula holds."""
    if kind not in ("yarn", "longrope"):
        return None
    if section.has("attention_factor"):
        return section.number("attention_factor")
    if kind != "yarn" or not (section.has("mscale") and section.has("mscale_all_dim")):
        return None
    log = math.log(max(1.0, section.number("factor")))
    above, below = section.number("mscale"), section.number("mscale_all_dim")
    return (0.1 * above * log + 1.0) / (0.1 * below * log + 1.0)


def _unsupported(section: Fields, what: str) -> ModelError:
    return ModelError(
        f"{section.where} asks for {what}, which plait does not run", reason="model_unsupported"
    )
