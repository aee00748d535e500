"""What a config.json says of quantised weights, and which of its ways plait reads."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from plait.errors import ModelError
from plait.models.fields import Fields

SECTION: Final = "quantization_config"
READ_HERE: Final = (
    "gptq (4 bits), awq (4 bits, version gemm), fp8 and fbgemm_fp8 (e4m3), compressed-tensors "
    "(float-quantized, 8 bits), mxfp4 (of gpt_oss)"
)
_FLOAT_FORMATS: Final = ("float-quantized", "naive-quantized")
_ZERO_SHIFTS: Final = {"gptq": 1, "gptq_v2": 0}


class Scheme(StrEnum):
    """How quantised matrices lie in safetensors."""

    GPTQ = "GPTQ"
    AWQ = "AWQ"
    FP8 = "FP8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """`group_columns` share a scale; None: all of a row. `zero_shift` is to be added to stored zero
    points. `block` (rows, columns) shares a scale in FP8; None: a row or the whole."""

    scheme: Scheme
    group_columns: int | None = None
    zero_shift: int = 0
    block: tuple[int, int] | None = None


def quantisation_from_config(config: Fields) -> Quantisation | None:
    """None where weights are plain, or MXFP4, which tensors' names tell.

    Raises ModelError(reason="model_unsupported"), with a list of what is read, for any other way.
    """
    section = config.section(SECTION)
    if section is None:
        return None
    match section.text("quant_method", "unknown"):
        case "gptq":
            return _gptq(section)
        case "awq":
            return _awq(section)
        case "fp8":
            return _fp8(section)
        case "fbgemm_fp8":
            return Quantisation(scheme=Scheme.FP8)
        case "compressed-tensors":
            return _compressed(section)
        case "mxfp4":
            return None
        case method:
            raise _unsupported(section, repr(method))


def _gptq(section: Fields) -> Quantisation:
    _require_four_bits(section, "gptq")
    word = section.text("checkpoint_format", "gptq")
    if word not in _ZERO_SHIFTS:
        raise _unsupported(section, f"gptq in the form {word!r}")
    return Quantisation(
        scheme=Scheme.GPTQ, group_columns=_group_columns(section), zero_shift=_ZERO_SHIFTS[word]
    )


def _awq(section: Fields) -> Quantisation:
    _require_four_bits(section, "awq")
    version = section.text("version", "gemm").lower()
    if version != "gemm":
        raise _unsupported(section, f"awq of version {version!r}")
    return Quantisation(scheme=Scheme.AWQ, group_columns=_group_columns(section))


def _fp8(section: Fields) -> Quantisation:
    kind = section.text("fmt", "e4m3")
    if kind not in ("e4m3", "float8_e4m3fn"):
        raise _unsupported(section, f"fp8 as {kind}")
    block = section.values.get("weight_block_size")
    if block is None:
        return Quantisation(scheme=Scheme.FP8)
    sizes = section.token_ids("weight_block_size")
    if len(sizes) != 2 or min(sizes) < 1:
        raise _unsupported(section, f"blocks of {block!r}")
    return Quantisation(scheme=Scheme.FP8, block=(sizes[0], sizes[1]))


def _compressed(section: Fields) -> Quantisation:
    """github.com/vllm-project/compressed-tensors: groups of layers, all in the one form here."""
    form = section.text("format", "unknown")
    groups = section.section("config_groups")
    if form not in _FLOAT_FORMATS or groups is None or not groups.values:
        raise _unsupported(section, f"compressed-tensors in the form {form!r}")
    for name in groups.values:
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if weights is None or (weights.text("type"), weights.count("num_bits")) != ("float", 8):
            raise _unsupported(section, f"compressed-tensors with other weights in {name}")
        if weights.text("strategy") not in ("tensor", "channel"):
            raise _unsupported(section, f"compressed-tensors by {weights.text('strategy')}")
    return Quantisation(scheme=Scheme.FP8)


def _require_four_bits(section: Fields, method: str) -> None:
    bits = section.count("bits" if section.has("bits") else "w_bit")
    if bits != 4:
        raise _unsupported(section, f"{method} of {bits} bits")


def _group_columns(section: Fields) -> int | None:
    key = "group_size" if section.has("group_size") else "q_group_size"
    value = section.values.get(key)
    return None if value == -1 else section.count(key, 128)


def _unsupported(section: Fields, what: str) -> ModelError:
    return ModelError(
        f"{section.where} asks for weights quantised as {what}, which plait does not read; it "
        f"reads {READ_HERE}: take one of these, the original or a GGUF",
        reason="model_unsupported",
    )
