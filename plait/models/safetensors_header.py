"""The header of a safetensors file: names, types and places of its tensors.

Format: github.com/huggingface/safetensors: eight bytes of length, that many bytes of JSON, data.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Final

from plait.errors import WeightsError
from plait.models.bytestore import ByteStore, refuse_pickle
from plait.types import DType

HEADER_BYTES_MAX: Final = 100_000_000
_DTYPES: Final = {"F32": DType.FLOAT32, "F16": DType.FLOAT16, "BF16": DType.BFLOAT16}
_SIZES: Final = {name: dtype.num_bytes for name, dtype in _DTYPES.items()} | {
    "F8_E4M3": 1,
    "I32": 4,
    "U8": 1,
}
"""Bytes of an element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor's place: `offset` from the file's start. `kind` is the format's word."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """All tensors by name, and the sha256 (hex) of the header's bytes."""

    tensors: dict[str, StoredTensor]
    sha256: str


def float_type(tensor: StoredTensor, where: str) -> DType:
    """Raises WeightsError for an element type that plait does not read (integers, 8-bit)."""
    dtype = _DTYPES.get(tensor.kind)
    if dtype is None:
        raise WeightsError(
            f"{where}: tensor {tensor.name} is stored as {tensor.kind}; plait reads "
            f"{', '.join(_DTYPES)}",
            reason="weights_unsupported",
        )
    return dtype


def read_header(store: ByteStore) -> SafetensorsHeader:
    """Parse and check the header. Raises WeightsError: a pickle, truncated, or nonsense."""
    head = bytes(store.read_at(0, min(16, store.size_bytes)))
    refuse_pickle(head, store.label)
    if len(head) < 8:
        raise _truncated(store, 8)
    size = int.from_bytes(head[:8], "little")
    if not 2 <= size <= HEADER_BYTES_MAX:
        raise _corrupt(store, f"its header claims {size} bytes")
    if 8 + size > store.size_bytes:
        raise _truncated(store, 8 + size)
    raw = bytes(store.read_at(8, size))
    try:
        content = json.loads(raw)
    except ValueError as error:
        raise _corrupt(store, "its header is not JSON") from error
    if not isinstance(content, dict):
        raise _corrupt(store, "its header is not a JSON object")
    tensors = {
        name: _tensor(store, name, entry, data_start=8 + size)
        for name, entry in content.items()
        if name != "__metadata__"
    }
    _check_places(store, tensors, data_start=8 + size)
    return SafetensorsHeader(tensors=tensors, sha256=hashlib.sha256(raw).hexdigest())


def _tensor(store: ByteStore, name: str, entry: object, *, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise _corrupt(store, f"tensor {name} has no description")
    kind = entry.get("dtype")
    shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if not isinstance(kind, str) or shape is None or offsets is None:
        raise _corrupt(store, f"tensor {name} has a malformed description")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _corrupt(store, f"tensor {name} has impossible offsets {offsets}")
    begin, end = offsets
    if kind in _SIZES and end - begin != math.prod(shape) * _SIZES[kind]:
        raise WeightsError(
            f"{store.label}: tensor {name} of shape {shape} in {kind} cannot have "
            f"{end - begin} bytes",
            reason="weights_disagree",
        )
    return StoredTensor(
        name=name, kind=kind, shape=shape, offset=data_start + begin, num_bytes=end - begin
    )


def _counts(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, list):
        return None
    counts = tuple(v for v in values if type(v) is int and 0 <= v < 2**48)
    return counts if len(counts) == len(values) else None


def _check_places(store: ByteStore, tensors: dict[str, StoredTensor], *, data_start: int) -> None:
    """No overlap, no hole, and the file ends where the last tensor does."""
    at = data_start
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.num_bytes)):
        if tensor.offset != at:
            raise _corrupt(store, f"tensor {tensor.name} overlaps another one or leaves a hole")
        at += tensor.num_bytes
        if at > store.size_bytes:
            raise WeightsError(
                f"{store.label} is truncated: tensor {tensor.name} ends at byte {at}, the file at "
                f"{store.size_bytes}; fetch it again",
                reason="weights_truncated",
            )
    if at != store.size_bytes:
        raise _corrupt(store, f"{store.size_bytes - at} bytes follow its last tensor")


def _truncated(store: ByteStore, needed: int) -> WeightsError:
    return WeightsError(
        f"{store.label} is truncated: its header needs {needed} bytes, the file has "
        f"{store.size_bytes}; fetch it again",
        reason="weights_truncated",
    )


def _corrupt(store: ByteStore, what: str) -> WeightsError:
    return WeightsError(f"{store.label} cannot be read as safetensors: {what}")
