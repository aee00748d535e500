"""Which layers of a config.json look back how far."""

from collections.abc import Mapping
from typing import Final

from plait.errors import ModelError
from plait.models.fields import Fields
from plait.models.hf_rope import FULL, SLIDING
from plait.types import Architecture

_WINDOW_TOKENS: Final[Mapping[Architecture, int | None]] = {
    Architecture.MISTRAL: 4096,
    Architecture.QWEN2: 4096,
    Architecture.QWEN3: 4096,
    Architecture.QWEN3_MOE: 4096,
    Architecture.GEMMA2: 4096,
    Architecture.GEMMA3: 4096,
    Architecture.GPT_OSS: 128,
    Architecture.PHI3: None,
    Architecture.MIXTRAL: None,
    Architecture.SMOLLM3: None,
}
"""What a file means that does not say; Llama has no windows at all."""

_ASKS_FIRST: Final = (
    Architecture.QWEN2,
    Architecture.QWEN3,
    Architecture.QWEN3_MOE,
    Architecture.SMOLLM3,
)
"""Families whose window counts only where `use_sliding_window` is true."""


def windows_from_config(
    config: Fields, architecture: Architecture, num_layers: int, context_tokens: int
) -> tuple[int | None, tuple[int, ...]]:
    """The window, and the layers that see everything all the same. Raises ModelError."""
    window = _window(config, architecture)
    if window is None:
        return None, ()
    full = _full_layers(config, architecture, num_layers)
    if len(full) == num_layers:
        return None, ()
    has_local_rope = architecture is Architecture.GEMMA3
    return (window, full) if window < context_tokens or has_local_rope else (None, ())


def _window(config: Fields, architecture: Architecture) -> int | None:
    if architecture not in _WINDOW_TOKENS:
        return None
    if architecture in _ASKS_FIRST and not config.flag("use_sliding_window", default=False):
        return None
    if config.has("sliding_window"):
        return config.count("sliding_window")
    return None if "sliding_window" in config.values else _WINDOW_TOKENS[architecture]


def _full_layers(config: Fields, architecture: Architecture, num_layers: int) -> tuple[int, ...]:
    layers = range(num_layers)
    if config.has("layer_types"):
        return _listed(config, num_layers)
    match architecture:
        case Architecture.QWEN2 | Architecture.QWEN3:
            num_full = config.values.get("max_window_layers", 28)
            if not isinstance(num_full, int) or num_full < 0:
                raise _invalid(config, f"max_window_layers is {num_full!r}")
            return tuple(layers[:num_full])
        case Architecture.GEMMA2 | Architecture.GPT_OSS:
            return tuple(layers[1::2])
        case Architecture.GEMMA3:
            every = config.count("sliding_window_pattern", 6)
            return tuple(layers[every - 1 :: every])
        case Architecture.SMOLLM3:
            raise _invalid(config, "it has a window but does not list layer_types")
        case _:
            return ()


def _listed(config: Fields, num_layers: int) -> tuple[int, ...]:
    kinds = config.values["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise _invalid(config, f"layer_types does not name the kind of each of {num_layers} layers")
    strange = [kind for kind in kinds if kind not in (FULL, SLIDING)]
    if strange:
        raise ModelError(
            f"{config.where} asks for layers with {strange[0]!r}, which plait does not run",
            reason="model_unsupported",
        )
    return tuple(layer for layer, kind in enumerate(kinds) if kind == FULL)


def _invalid(config: Fields, what: str) -> ModelError:
    return ModelError(f"{config.where}: {what}", reason="model_config_invalid")
