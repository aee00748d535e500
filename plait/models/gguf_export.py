"""Safetensors as a GGUF: shape and tokenizer as metadata, tensors by llama.cpp's names."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType, RopeScalingType
from numpy.typing import NDArray

from plait.errors import ModelError
from plait.models.gguf_names import ROPE_FACTORS, gguf_name
from plait.models.gguf_rounding import rounded
from plait.models.gguf_vocabulary import add_tokenizer
from plait.models.llama3_rope import llama3_factors
from plait.models.progress import PullProgress
from plait.models.source import TensorSource
from plait.models.tensors import span_tensor_names, tensor_shape
from plait.models.tokenizer import TokenizerFiles
from plait.types import Architecture, DType, ModelSpec

_A = Architecture
_NAMES: Final = {_A.LLAMA: "llama", _A.MISTRAL: "llama", _A.QWEN2: "qwen2", _A.QWEN3: "qwen3"}
"""Families that can be written, by llama.cpp's words."""

_PERMUTED: Final = "llama"
_FORWARD_KINDS: Final = ("linear", "yarn")
Values = NDArray[np.float32]
Target = Callable[[str, tuple[int, ...]], GGMLQuantizationType]
"""The element type of a tensor, by its name in the file and its shape."""


def require_exportable(spec: ModelSpec) -> None:
    """Raises ModelError for a family, or a variant of one, that no GGUF is written of here."""
    scaling = None if spec.rope_scaling is None else spec.rope_scaling.kind
    if spec.architecture not in _NAMES:
        raise _impossible(f"{spec.architecture} models; it does of {', '.join(_NAMES)}")
    if scaling not in (None, "llama3", *_FORWARD_KINDS):
        raise _impossible(f"models with rope scaling {scaling!r}")


def export_bytes(spec: ModelSpec, target: Target) -> int:
    """Bytes of all tensors as they will be written."""
    total = 0
    for name in span_tensor_names(spec, spec.whole):
        shape = tensor_shape(spec, name)
        block, size = GGML_QUANT_SIZES[target(gguf_name(spec, name).stored, shape)]
        total += int(np.prod(shape)) // block * size
    return total


def export_gguf(
    source: TensorSource,
    files: TokenizerFiles,
    part: Path,
    *,
    target: Target,
    file_type: LlamaFileType,
    progress: PullProgress,
) -> None:
    """Write `source` to `part`, one tensor in memory at a time.

    Raises:
        ModelError: a tokenizer that a GGUF has no words for.
        WeightsError: damaged weights.
    """
    spec = source.spec
    writer = GGUFWriter(part, arch=_NAMES[spec.architecture])
    _add_shape(writer, spec)
    add_tokenizer(writer, files, spec)
    writer.add_file_type(file_type)
    names = span_tensor_names(spec, spec.whole)
    targets: dict[str, GGMLQuantizationType] = {}
    for name in names:
        stored, shape = gguf_name(spec, name).stored, tensor_shape(spec, name)
        quant = targets[name] = target(stored, shape)
        block, size = GGML_QUANT_SIZES[quant]
        width = shape[-1] // block * size if block > 1 else shape[-1]
        kind = np.dtype(np.uint8) if block > 1 else np.dtype(np.float32)
        num_bytes = int(np.prod(shape)) // block * size
        writer.add_tensor_info(stored, (*shape[:-1], width), kind, num_bytes, raw_dtype=quant)
    factors = _rope_factors(spec)
    if factors is not None:
        shape = factors.shape
        writer.add_tensor_info(ROPE_FACTORS, shape, np.dtype(np.float32), factors.nbytes)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        total, done = sum(source.stored_bytes(name) for name in names), 0
        for name in names:
            values = _permuted(_dense(source, name), spec, name)
            writer.write_tensor_data(rounded(values, targets[name]))
            done += source.stored_bytes(name)
            progress("quantising", done, total)
        if factors is not None:
            writer.write_tensor_data(factors)
    finally:
        writer.close()


def _add_shape(writer: GGUFWriter, spec: ModelSpec) -> None:
    writer.add_name(str(spec.model_id))
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.context_tokens_max)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_vocab_size(spec.vocab_size)
    if spec.sliding_window_tokens is not None:
        writer.add_sliding_window(spec.sliding_window_tokens)
    scaling = spec.rope_scaling
    if scaling is not None and scaling.kind in _FORWARD_KINDS:
        writer.add_rope_scaling_type(RopeScalingType(scaling.kind))
        writer.add_rope_scaling_factor(scaling.factor)
        if scaling.original_context_tokens is not None:
            writer.add_rope_scaling_orig_ctx_len(scaling.original_context_tokens)


def _rope_factors(spec: ModelSpec) -> Values | None:
    """llama3's scaling, which a GGUF has as a factor for each frequency."""
    scaling = spec.rope_scaling
    if scaling is None or scaling.kind != "llama3":
        return None
    factors: Values = llama3_factors(spec.head_dim, spec.rope_theta, scaling).astype(np.float32)
    return factors


def _dense(source: TensorSource, name: str) -> Values:
    """As float32."""
    data = source.read(name)
    if data.dtype is DType.BFLOAT16:
        bits = np.frombuffer(data.buffer, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(data.shape)
    kind = "<f4" if data.dtype is DType.FLOAT32 else "<f2"
    values: Values = np.frombuffer(data.buffer, kind).astype(np.float32).reshape(data.shape)
    return values


def _permuted(values: Values, spec: ModelSpec, name: str) -> Values:
    """llama.cpp rotates neighbours: (head, half, pair) becomes (head, pair, half)."""
    if _NAMES[spec.architecture] != _PERMUTED:
        return values
    if ".q_proj." in name:
        num_heads = spec.num_heads
    elif ".k_proj." in name:
        num_heads = spec.num_kv_heads
    else:
        return values
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _impossible(what: str) -> ModelError:
    return ModelError(f"plait writes no GGUF of {what}", reason="model_unsupported")
