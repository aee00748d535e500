"""The header of a GGUF file, without the tokenizer's arrays (they are walked, not built).

Format: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3.
"""

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Final

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from plait.errors import ModelError, WeightsError
from plait.models.bytestore import ByteStore, refuse_pickle

MAGIC: Final = b"GGUF"
HEADER_BYTES_MAX: Final = 256 * 2**20
NUM_TENSORS_MAX: Final = 2**20
_NUM_KEYS_MAX: Final = 2**16
_STRING, _ARRAY = 8, 9
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor as the file has it: `shape` row-major, `offset` from the file's start, bytes."""

    name: str
    quant: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Scalars and strings of the metadata, and the tensors' places.

    `metadata_bytes` is the file's beginning up to and with its metadata, `sha256` (hex) that of
    everything before the tensors.
    """

    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]
    metadata_bytes: bytes
    sha256: str


def read_header(store: ByteStore, *, block_bytes: int = 256 * 1024) -> GgufHeader:
    """Parse the header, reading no more than a block past its end.

    Raises:
        WeightsError: not a GGUF, a pickle, truncated, or nonsense inside.
    """
    cursor = _Cursor(store, block_bytes)
    try:
        return _parse(cursor, store)
    except UnicodeDecodeError as error:
        raise cursor.corrupt("a name is not UTF-8") from error


def _parse(cursor: "_Cursor", store: ByteStore) -> GgufHeader:
    magic = cursor.take(min(16, store.size_bytes))
    refuse_pickle(magic, store.label)
    if magic[:4] != MAGIC:
        raise cursor.corrupt("it is not a GGUF file")
    cursor.at = 4
    version = cursor.number("<I")
    if version not in (2, 3):
        raise ModelError(
            f"{store.label} is a GGUF of version {version} (or big-endian); plait reads 2 and 3",
            reason="model_unsupported",
        )
    num_tensors, num_keys = int(cursor.number("<Q")), int(cursor.number("<Q"))
    if num_tensors > NUM_TENSORS_MAX or num_keys > _NUM_KEYS_MAX:
        raise cursor.corrupt(f"it claims {num_tensors} tensors and {num_keys} metadata keys")
    metadata: dict[str, object] = {}
    for _ in range(num_keys):
        key, kind = cursor.text(), int(cursor.number("<I"))
        if kind == _ARRAY:
            cursor.skip_array()
        elif kind == _STRING:
            metadata[key] = cursor.text()
        else:
            metadata[key] = cursor.scalar(kind)
    metadata_end = cursor.at
    tensors = [_tensor_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= 2**20:
        raise cursor.corrupt(f"its alignment is {alignment!r}")
    data_start = math.ceil(cursor.at / alignment) * alignment
    placed: dict[str, GgufTensor] = {}
    for name, shape, quant, offset in tensors:
        if name in placed:
            raise cursor.corrupt(f"tensor {name} is there twice")
        placed[name] = _place(store, name, shape, quant, data_start + offset)
    _check_places(store, placed, data_start=data_start, alignment=alignment)
    head = cursor.all_until(cursor.at)
    return GgufHeader(
        metadata=metadata,
        tensors=placed,
        metadata_bytes=bytes(head[:metadata_end]),
        sha256=hashlib.sha256(head).hexdigest(),
    )


def _tensor_entry(cursor: "_Cursor") -> tuple[str, tuple[int, ...], int, int]:
    name, num_dims = cursor.text(), int(cursor.number("<I"))
    if num_dims > 8:
        raise cursor.corrupt(f"tensor {name} has {num_dims} dimensions")
    dims = [int(cursor.number("<Q")) for _ in range(num_dims)]
    quant, offset = int(cursor.number("<I")), int(cursor.number("<Q"))
    return name, tuple(reversed(dims)), quant, offset


def _place(
    store: ByteStore, name: str, shape: tuple[int, ...], quant_id: int, offset: int
) -> GgufTensor:
    try:
        quant = GGMLQuantizationType(quant_id)
    except ValueError:
        raise ModelError(
            f"{store.label}: tensor {name} has an unknown element type ({quant_id}); a newer "
            "`gguf` package may know it",
            reason="model_unsupported",
        ) from None
    block_elements, block_bytes = GGML_QUANT_SIZES[quant]
    elements = math.prod(shape)
    if elements == 0 or not shape or shape[-1] % block_elements != 0:
        raise WeightsError(f"{store.label}: tensor {name} has an impossible shape {shape}")
    num_bytes = elements // block_elements * block_bytes
    if offset + num_bytes > store.size_bytes:
        raise WeightsError(
            f"{store.label} is truncated: tensor {name} ends at byte {offset + num_bytes}, the "
            f"file at {store.size_bytes}; fetch it again",
            reason="weights_truncated",
        )
    return GgufTensor(name=name, quant=quant, shape=shape, offset=offset, num_bytes=num_bytes)


def _check_places(
    store: ByteStore, tensors: dict[str, GgufTensor], *, data_start: int, alignment: int
) -> None:
    """Tensors lie one behind the other, each at the next multiple of the alignment: a type or shape
    that is not the data's leaves a hole or overlaps."""
    at = data_start
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset != at:
            raise WeightsError(
                f"{store.label}: tensor {tensor.name} begins at byte {tensor.offset}, the one "
                f"before it ends at {at}: the header's types and shapes are not those of the data",
                reason="weights_disagree",
            )
        at += math.ceil(tensor.num_bytes / alignment) * alignment


class _Cursor:
    """Walks the header, fetching blocks as it needs them."""

    def __init__(self, store: ByteStore, block_bytes: int) -> None:
        self._store = store
        self._block_bytes = block_bytes
        self._data = bytearray()
        self.at = 0

    def corrupt(self, what: str) -> WeightsError:
        return WeightsError(f"{self._store.label} cannot be read as a GGUF: {what}")

    def take(self, size: int) -> bytes:
        self._need(self.at + size)
        taken = bytes(self._data[self.at : self.at + size])
        self.at += size
        return taken

    def number(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return value

    def scalar(self, kind: int) -> int | float | bool:
        code = _SCALARS.get(kind)
        if code is None:
            raise self.corrupt(f"its metadata has an unknown type ({kind})")
        return self.number(code)

    def text(self) -> str:
        return self.take(int(self.number("<Q"))).decode("utf-8")

    def skip_array(self) -> None:
        kind, count = int(self.number("<I")), int(self.number("<Q"))
        if kind == _STRING:
            self._skip_strings(count)
        elif kind in _SCALARS:
            self.at += count * struct.calcsize(_SCALARS[kind])
            self._need(self.at)
        else:
            raise self.corrupt(f"its metadata has an array of an unknown type ({kind})")

    def all_until(self, end: int) -> memoryview:
        self._need(end)
        return memoryview(self._data)[:end]

    def _skip_strings(self, count: int) -> None:
        at, data = self.at, self._data
        for _ in range(count):  # a vocabulary: keep the loop tight
            if at + 8 > len(data):
                self._need(at + 8)
            at += 8 + int.from_bytes(data[at : at + 8], "little")
        self.at = at
        self._need(at)

    def _need(self, end: int) -> None:
        if end > HEADER_BYTES_MAX:
            raise self.corrupt(f"its header claims more than {HEADER_BYTES_MAX} bytes")
        have = len(self._data)
        if end <= have:
            return
        if end > self._store.size_bytes:
            raise WeightsError(
                f"{self._store.label} is truncated: its header goes on after its last byte; pull "
                "it again",
                reason="weights_truncated",
            )
        size = min(max(end - have, self._block_bytes), self._store.size_bytes - have)
        self._data += self._store.read_at(have, size)
