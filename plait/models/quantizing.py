"""A model as a GGUF in another element type: read, rounded and written tensor by tensor."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, LlamaFileType
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from plait.errors import ConfigError, ModelError, WeightsError
from plait.models.bytestore import FileStore
from plait.models.disk import PART, file_sha256, require_space, storing
from plait.models.gguf_export import export_bytes, export_gguf, require_exportable
from plait.models.gguf_header import MAGIC, read_header
from plait.models.gguf_rounding import rounded
from plait.models.gguf_source import GgufSource
from plait.models.opening import open_source, tokenizer_source, weights_path
from plait.models.progress import PullProgress, ignore_progress
from plait.types import Architecture, ModelSource, ModelSpec

KINDS: Final = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q5_0": (GGMLQuantizationType.Q5_0, LlamaFileType.MOSTLY_Q5_0),
    "q5_1": (GGMLQuantizationType.Q5_1, LlamaFileType.MOSTLY_Q5_1),
    "q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "q4_1": (GGMLQuantizationType.Q4_1, LlamaFileType.MOSTLY_Q4_1),
}
"""Element types that can be written, and llama.cpp's word for a file that is mostly that."""

_FINE_ENDS: Final = ("q4_0", "q4_1", "q5_0", "q5_1")
_ENDS: Final = ("token_embd.weight", "output.weight")
"""In files of 4 and 5 bits these stay in 8: they carry every token."""

_OWN_KEYS: Final = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedFile:
    """What was written. `sha256` is hex."""

    path: Path
    num_bytes: int
    source_bytes: int
    sha256: str


def quantize_model(
    source: ModelSource,
    out: Path,
    kind: str,
    *,
    models_dir: Path | None = None,
    progress: PullProgress = ignore_progress,
) -> QuantizedFile:
    """Write `source`, a GGUF or safetensors on this machine, to `out` with its matrices as `kind`,
    one of `KINDS`.

    One tensor is in memory at a time; `out` appears when it is whole. Norms and biases stay as
    they are. `progress` hears ("quantising", done, total) in bytes of the source.

    Raises:
        ConfigError: an unknown kind, or an `out` that exists or is the source.
        ModelError: a source that is neither, or a family or tokenizer that no GGUF is written of.
        WeightsError: damaged, of an element type that cannot be read, or no room for `out`.
    """
    if kind not in KINDS:
        raise ConfigError(f"--to {kind!r}: choose one of {', '.join(KINDS)}")
    path = weights_path(source, models_dir=models_dir)
    _check_paths(path, out)
    if path.is_dir() or path.suffix == ".safetensors":
        source_bytes = _export(source, out, kind, models_dir, progress)
    else:
        source_bytes = _rewrite(path, out, kind, progress)
    return QuantizedFile(
        path=out,
        num_bytes=out.stat().st_size,
        source_bytes=source_bytes,
        sha256=file_sha256(out),
    )


def _export(
    source: ModelSource, out: Path, kind: str, models_dir: Path | None, progress: PullProgress
) -> int:
    """From safetensors. Returns the source's bytes."""
    opened = open_source(source, models_dir=models_dir)
    try:
        require_exportable(opened.spec)
        files = tokenizer_source(source, models_dir=models_dir)

        def target(name: str, shape: tuple[int, ...]) -> GGMLQuantizationType:
            return _target(name, shape, kind, GGMLQuantizationType.F32)

        with _whole_or_nothing(out, export_bytes(opened.spec, target)) as part:
            file_type = KINDS[kind][1]
            export_gguf(opened, files, part, target=target, file_type=file_type, progress=progress)
            _require_same_shape(opened.spec, part)
        return opened.total_bytes
    finally:
        opened.close()


def _require_same_shape(spec: ModelSpec, part: Path) -> None:
    """What a reader makes of the new file must be the model that went in."""
    store = FileStore(part)
    try:
        found = GgufSource(store, spec.model_id).spec
    finally:
        store.close()
    eps, theta = float(np.float32(spec.norm_eps)), float(np.float32(spec.rope_theta))
    architecture = spec.architecture
    if architecture is Architecture.MISTRAL:
        architecture = Architecture.LLAMA
    expected = replace(spec, norm_eps=eps, rope_theta=theta, architecture=architecture)
    differing = [
        name for name in ModelSpec.__slots__ if getattr(found, name) != getattr(expected, name)
    ]
    if differing:
        raise ModelError(
            f"a GGUF would not say this of {spec.model_id} as it is: {', '.join(differing)}",
            reason="model_unsupported",
        )


def _rewrite(path: Path, out: Path, kind: str, progress: PullProgress) -> int:
    """From a GGUF. Returns the source's bytes."""
    store = FileStore(path)
    try:
        if bytes(store.read_at(0, min(4, store.size_bytes))) != MAGIC:
            raise ModelError(
                f"{path} is no GGUF: plait quantises GGUFs and safetensors",
                reason="model_unsupported",
            )
        read_header(store)  # refuses what is cut or nonsense, before anything is written
    finally:
        store.close()
    reader = GGUFReader(path)
    plan = [(tensor, _target_of(tensor, kind)) for tensor in reader.tensors]
    needed = sum(_num_bytes(tensor, target) for tensor, target in plan)
    with _whole_or_nothing(out, needed) as part:
        _write(reader, plan, part, kind, progress)
    return path.stat().st_size


def _check_paths(path: Path, out: Path) -> None:
    if out.exists():
        same = out.samefile(path)
        what = "is the source itself" if same else "exists already"
        raise ConfigError(f"--out {out} {what}: name a new file")
    if out.suffix != ".gguf":
        raise ConfigError(f"--out {out}: the name of a GGUF ends with .gguf")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.absolute().parent}")


@contextmanager
def _whole_or_nothing(out: Path, needed: int) -> Iterator[Path]:
    """The file to write beside `out`, which it becomes at the end; nothing is left of a failure."""
    folder = out.absolute().parent
    require_space(folder, needed)
    part = out.with_name(out.name + PART)
    with storing(folder, needed):
        try:
            yield part
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)


def _target(
    name: str, shape: tuple[int, ...], kind: str, as_it_is: GGMLQuantizationType
) -> GGMLQuantizationType:
    """Matrices as asked, ends finer; vectors, and rows that no block divides, as they are."""
    if len(shape) < 2:
        return as_it_is
    is_end = name in _ENDS and kind in _FINE_ENDS
    wanted = KINDS["q8_0" if is_end else kind][0]
    block = GGML_QUANT_SIZES[wanted][0]
    return wanted if shape[-1] % block == 0 else GGMLQuantizationType.F16


def _target_of(tensor: ReaderTensor, kind: str) -> GGMLQuantizationType:
    shape = tuple(int(width) for width in reversed(tensor.shape))
    return _target(tensor.name, shape, kind, tensor.tensor_type)


def _num_bytes(tensor: ReaderTensor, target: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[target]
    num_bytes: int = int(tensor.n_elements) // block * size
    return num_bytes


def _write(
    reader: GGUFReader,
    plan: list[tuple[ReaderTensor, GGMLQuantizationType]],
    part: Path,
    kind: str,
    progress: PullProgress,
) -> None:
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(part, arch=str(architecture))
    for field in reader.fields.values():
        if field.name in _OWN_KEYS or field.name in ("general.file_type", "general.alignment"):
            continue
        sub_type = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(KINDS[kind][1])
    for tensor, target in plan:
        shape = [int(width) for width in reversed(tensor.shape)]
        block, size = GGML_QUANT_SIZES[target]
        stored_shape = (*shape[:-1], shape[-1] // block * size) if block > 1 else tuple(shape)
        writer.add_tensor_info(
            tensor.name,
            stored_shape,
            np.dtype(np.uint8) if block > 1 else np.dtype(np.float32),
            _num_bytes(tensor, target),
            raw_dtype=target,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    total = sum(int(tensor.n_bytes) for tensor, _ in plan)
    done = 0
    try:
        for tensor, target in plan:
            writer.write_tensor_data(_converted(tensor, target))
            done += int(tensor.n_bytes)
            progress("quantising", done, total)
    finally:
        writer.close()


def _converted(tensor: ReaderTensor, target: GGMLQuantizationType) -> NDArray[np.generic]:
    if tensor.tensor_type == target:
        stored: NDArray[np.generic] = tensor.data
        return stored
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise WeightsError(
            f"tensor {tensor.name} has element type {tensor.tensor_type.name}, which plait cannot "
            "read",
            reason="weights_unsupported",
        ) from None
    if not bool(np.isfinite(values).all()):
        raise WeightsError(
            f"tensor {tensor.name} has NaN or infinite values", reason="weights_not_finite"
        )
    return rounded(values, target)
