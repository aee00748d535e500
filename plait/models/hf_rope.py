"""Rotary settings of a config.json, in the old keys (rope_theta, rope_scaling) and the new one
(rope_parameters)."""

from typing import Final

from plait.errors import ModelError
from plait.models.fields import Fields
from plait.types import RopeScaling

THETA: Final = 10000.0
_KINDS: Final = ("linear", "dynamic", "yarn", "llama3")
_YARN_FIXED: Final = {"beta_fast": 32.0, "beta_slow": 1.0}
_YARN_UNKNOWN: Final = ("attention_factor", "mscale", "mscale_all_dim")


def rope_from_config(config: Fields, context_tokens: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling. Raises ModelError for a scaling that plait does not run."""
    section = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.number("rope_theta", THETA)
    if section is None:
        return theta, None
    theta = section.number("rope_theta", theta)
    if section.number("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(section, "a partial rotary embedding")
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in _KINDS:
        raise _unsupported(section, f"rope scaling {kind!r} (supported: {', '.join(_KINDS)})")
    if kind == "yarn":
        _refuse_yarn_variants(section)
    original = config.values.get("original_max_position_embeddings")
    default = original if isinstance(original, int) and original > 0 else context_tokens
    return theta, RopeScaling(
        kind=kind,
        factor=section.number("factor"),
        low_freq_factor=section.number("low_freq_factor", 1.0),
        high_freq_factor=section.number("high_freq_factor", 4.0),
        original_context_tokens=section.count("original_max_position_embeddings", default),
    )


def _refuse_yarn_variants(section: Fields) -> None:
    for key, usual in _YARN_FIXED.items():
        if section.number(key, usual) != usual:
            raise _unsupported(section, f"yarn with {key} other than {usual}")
    for key in _YARN_UNKNOWN:
        if section.has(key):
            raise _unsupported(section, f"yarn with {key}")


def _unsupported(section: Fields, what: str) -> ModelError:
    return ModelError(
        f"{section.where} asks for {what}, which plait does not run", reason="model_unsupported"
    )
