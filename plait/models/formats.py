"""Which numbers a network computes with, from what an operator asks for and what a file has."""

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

from plait.errors import ConfigError
from plait.models.source import TensorSource
from plait.types import WeightFormat

WEIGHT_CHOICES: Final = ("auto", "fp32", "fp16", "int8", "int4")
_WIDE_GROUPS: Final = ("GPTQ", "AWQ")
"""Four bits in groups of 64 or 128 already; anything else keeps more of itself in groups of 32."""


@runtime_checkable
class _Typed(Protocol):
    def stored_types(self) -> Mapping[str, int]: ...


def choose_format(choice: str, source: TensorSource) -> WeightFormat:
    """The format of a model for every node of a network; see decision 91.

    "auto" is float16 weights for files of 16 bits a weight or fewer, whose values float16 holds,
    and the compute dtype for others. "int8" rounds the LM head too where the file did. "int4" is
    groups of 32, in which a GGUF's 4-bit blocks are kept exactly.
    Raises ConfigError for a word that is none of `WEIGHT_CHOICES`.
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
    return True


def main_type(source: TensorSource) -> str:
    """The element type that most bytes of the weights have, in the file's own words."""
    types = source.stored_types() if isinstance(source, _Typed) else {}
    return max(types, key=lambda name: types[name], default="F32")
