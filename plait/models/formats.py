"""Which numbers a network computes with, from what an operator asks for and what a file has."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol, runtime_checkable

from plait.errors import ConfigError
from plait.models.gguf_blocks import CODED_QUANTS
from plait.models.source import TensorSource
from plait.models.tensors import EMBEDDING, HEAD, layer_shapes
from plait.types import ModelSpec, WeightFormat

WEIGHT_CHOICES: Final = ("auto", "fp32", "fp16", "int8", "int4", "stored")
_WIDE_GROUPS: Final = ("GPTQ", "AWQ")
"""Four bits in groups of 64 or 128 already; anything else keeps more of itself in groups of 32."""

KEPT_TYPES: Final = frozenset(
    {"F32", "F16", "BF16", "GPTQ", "AWQ", "FP8"} | {quant.name for quant in CODED_QUANTS}
)
"""Element types that stay in memory as a file has them, by its own words."""

_PACKED_ANEW: Final = 1.03
"""How much larger codes may lie in memory than in a file: Q4_K's scales take eight bits for six."""


@runtime_checkable
class _Typed(Protocol):
    def stored_types(self) -> Mapping[str, int]: ...


def choose_format(choice: str, source: TensorSource) -> WeightFormat:
    """The format of a model for every node of a network; see decision 91.

    "auto" is float16 weights for files of 16 bits a weight or fewer, whose values float16 holds,
    and the compute dtype for others. "int8" rounds the LM head too where the file did. "int4" is
    groups of 32, in which a GGUF's 4-bit blocks are kept exactly. "stored" is what the file has,
    bit for bit; see decision 131.
    Raises ConfigError for a word that is none of `WEIGHT_CHOICES`, and for "stored" where the file
    has what cannot be kept.
    """
    if choice not in WEIGHT_CHOICES:
        raise ConfigError(f"--weights {choice!r}: choose one of {', '.join(WEIGHT_CHOICES)}")
    stored = main_type(source)
    match choice:
        case "fp32":
            return WeightFormat.NATIVE
        case "fp16":
            return WeightFormat.FP16
        case "int8":
            return WeightFormat.Q8_0 if stored == "Q8_0" else WeightFormat.INT8
        case "int4":
            return WeightFormat.INT4 if stored in _WIDE_GROUPS else WeightFormat.Q4_1
        case "stored":
            _require_kept(source)
            return WeightFormat.NATIVE if stored == "F32" else WeightFormat.STORED
    return WeightFormat.NATIVE if stored == "F32" else WeightFormat.FP16


def suits(choice: str, weight_format: WeightFormat) -> bool:
    """Whether a network's format is one that a node's owner asked for."""
    match choice:
        case "fp32":
            return weight_format is WeightFormat.NATIVE
        case "fp16":
            return weight_format is WeightFormat.FP16
        case "int8":
            return weight_format in (WeightFormat.INT8, WeightFormat.Q8_0)
        case "int4":
            return weight_format in (WeightFormat.INT4, WeightFormat.Q4_1)
        case "stored":
            return weight_format in (WeightFormat.STORED, WeightFormat.NATIVE)
    return True


def in_format(spec: ModelSpec, choice: str, source: TensorSource) -> ModelSpec:
    """`spec` in the numbers that `choose_format` says, which it raises as; with the bits of a
    weight where the file decides them."""
    weight_format = choose_format(choice, source)
    if weight_format is not WeightFormat.STORED:
        return replace(spec, weight_format=weight_format)
    layers = [_layer_bytes(spec, layer, source) for layer in range(spec.num_layers)]
    head = source.stored_bytes(EMBEDDING if spec.tie_embeddings else HEAD)
    return replace(
        spec,
        weight_format=weight_format,
        stored_layer_bits=8 * _PACKED_ANEW * max(layers) / spec.layer_params,
        stored_end_bits=8 * _PACKED_ANEW * head / spec.embedding_params,
    )


def _require_kept(source: TensorSource) -> None:
    foreign = sorted(set(_types(source)) - KEPT_TYPES)
    if foreign:
        raise ConfigError(
            f"--weights stored: the file has weights as {', '.join(foreign)}, which plait does not "
            f"keep in memory; it keeps {', '.join(sorted(KEPT_TYPES))}: use --weights fp16"
        )


def _layer_bytes(spec: ModelSpec, layer: int, source: TensorSource) -> int:
    """Vectors are held in 32 bits."""
    return sum(
        source.stored_bytes(f"model.layers.{layer}.{leaf}")
        if len(shape) == 2
        else 4 * math.prod(shape)
        for leaf, shape in layer_shapes(spec).items()
    )


def _types(source: TensorSource) -> Mapping[str, int]:
    return source.stored_types() if isinstance(source, _Typed) else {}


def main_type(source: TensorSource) -> str:
    """The element type that most bytes of the weights have, in the file's own words."""
    types = _types(source)
    return max(types, key=lambda name: types[name], default="F32")
