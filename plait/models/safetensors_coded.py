"""GPTQ, AWQ and FP8 matrices in safetensors files, as codes with scales.

GPTQ: Frantar et al. (2022), as AutoGPTQ stores it: eight inputs a word, zero points less one.
AWQ: Lin et al. (2023), as AutoAWQ's "gemm" stores it: eight outputs a word, in its own order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from plait.errors import WeightsError
from plait.models.bytestore import ByteStore
from plait.models.coded import CodedMatrix, CodeKind, Stored
from plait.models.hf_quantised import Quantisation, Scheme
from plait.models.safetensors_part import Range, Shape, StoredIn
from plait.types import DType

_IN_A_WORD: Final = 8
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs nibble i of a word is."""

_FLOATS: Final = {"F16": "<f2", "F32": "<f4"}


@dataclass(frozen=True, slots=True)
class CodedPart:
    """A quantised matrix. `stored` has its tensors by the last word of their names."""

    name: str
    quantisation: Quantisation
    stored: Mapping[str, StoredIn]

    @property
    def kind(self) -> str:
        """For people, and for the choice of a format."""
        return self.quantisation.scheme

    @property
    def label(self) -> str:
        return next(iter(self.stored.values())).store.label

    def shape(self) -> Shape:
        """(out, in). Raises WeightsError where the tensors do not fit together."""
        match self.quantisation.scheme:
            case Scheme.GPTQ:
                words, out = self._matrix("qweight", "I32")
                shape = (out, words * _IN_A_WORD)
            case Scheme.AWQ:
                width, words = self._matrix("qweight", "I32")
                shape = (words * _IN_A_WORD, width)
            case Scheme.FP8:
                return self._matrix("weight", "F8_E4M3")
        self._require_groups(*shape)
        return shape

    def ranges(self) -> list[tuple[ByteStore, Range]]:
        """Files and bytes that `read_coded` needs."""
        places = self.stored.values()
        return [(place.store, (place.tensor.offset, place.tensor.num_bytes)) for place in places]

    def stored_bytes(self) -> int:
        return sum(place.tensor.num_bytes for place in self.stored.values())

    def read(self) -> tuple[memoryview, DType]:
        """Row-major float32 bytes. Raises WeightsError."""
        return self.read_coded().dense().reshape(-1).view(np.uint8).data, DType.FLOAT32

    def read_coded(self) -> CodedMatrix:
        """Raises WeightsError."""
        match self.quantisation.scheme:
            case Scheme.GPTQ:
                coded = self._gptq()
            case Scheme.AWQ:
                coded = self._awq()
            case Scheme.FP8:
                coded = self._fp8()
        coded.require_finite(name=self.name, where=self.label)
        return coded

    def _gptq(self) -> CodedMatrix:
        out, width = self.shape()
        codes = _unpacked(self._array("qweight")).transpose(1, 0, 2).reshape(out, width)
        zeros = _unpacked(self._array("qzeros")).reshape(-1, out)
        zeros = zeros + np.uint8(self.quantisation.zero_shift)
        columns = self._columns(width)
        if columns is not None:
            codes = np.ascontiguousarray(codes[:, columns])
        return self._four_bits(codes, zeros, columns)

    def _awq(self) -> CodedMatrix:
        out, width = self.shape()
        order = np.argsort(_AWQ_ORDER)
        codes = _unpacked(self._array("qweight"))[..., order].reshape(width, out)
        zeros = _unpacked(self._array("qzeros"))[..., order].reshape(-1, out)
        return self._four_bits(np.ascontiguousarray(codes.T), zeros, None)

    def _four_bits(
        self,
        codes: NDArray[np.uint8],
        zeros: NDArray[np.uint8],
        columns: NDArray[np.int32] | None,
    ) -> CodedMatrix:
        """`zeros` (groups, out). One zero point for all is an offset."""
        width = codes.shape[1]
        first = int(zeros.flat[0])
        is_symmetric = bool((zeros == first).all())
        return CodedMatrix(
            kind=CodeKind.UINT4,
            codes=codes,
            offset=first if is_symmetric else 0,
            scale=_spread(self._floats("scales").T, width, self._group_columns(width)),
            least_codes=None
            if is_symmetric
            else _spread(zeros.T, width, self._group_columns(width)),
            columns=columns,
        )

    def _fp8(self) -> CodedMatrix:
        out, width = self.shape()
        word = "weight_scale_inv" if "weight_scale_inv" in self.stored else "weight_scale"
        scale = self._floats(word).astype(np.float32)
        block = self.quantisation.block
        if scale.size == 1:
            scale = np.broadcast_to(scale.reshape(1, 1), (out, 1))
        elif scale.size == out and block is None:
            scale = scale.reshape(out, 1)
        elif block is not None and scale.shape == (
            math.ceil(out / block[0]),
            math.ceil(width / block[1]),
        ):
            scale = np.repeat(scale, block[0], axis=0)[:out]
            scale = _spread(scale, width, block[1]).astype(np.float32)
        else:
            raise self._impossible(f"scales {scale.shape} of a matrix {(out, width)}")
        codes = self._array("weight").view(np.uint8)
        return CodedMatrix(kind=CodeKind.FLOAT8, codes=codes, scale=np.ascontiguousarray(scale))

    def _columns(self, width: int) -> NDArray[np.int32] | None:
        """Columns in the order of their groups; None where they are in it."""
        if "g_idx" not in self.stored:
            return None
        groups = self._array("g_idx")
        size = self._group_columns(width)
        if np.array_equal(groups, np.arange(width) // size):
            return None
        order = np.argsort(groups, kind="stable").astype(np.int32)
        if not np.array_equal(groups[order], np.arange(width) // size):
            raise self._impossible(f"g_idx does not name {size} columns for each group")
        return order

    def _require_groups(self, out: int, width: int) -> None:
        num_groups = math.ceil(width / self._group_columns(width))
        wanted: dict[str, Shape] = {"scales": (num_groups, out)}
        wanted["qzeros"] = (num_groups, out // _IN_A_WORD)
        if "g_idx" in self.stored:
            wanted["g_idx"] = (width,)
        for leaf, shape in wanted.items():
            found = self.stored[leaf].tensor.shape
            if found != shape or out % _IN_A_WORD:
                raise self._impossible(f"{leaf} {found} where {shape} is needed")

    def _group_columns(self, width: int) -> int:
        return min(self.quantisation.group_columns or width, width)

    def _matrix(self, leaf: str, kind: str) -> tuple[int, int]:
        tensor = self.stored[leaf].tensor
        if tensor.kind != kind or len(tensor.shape) != 2:
            raise self._impossible(f"{leaf} is {tensor.kind} {tensor.shape}")
        return tensor.shape[0], tensor.shape[1]

    def _array(self, leaf: str) -> NDArray[np.int32]:
        """Integers of 32 bits; bytes where the tensor has these."""
        tensor, store = self.stored[leaf].tensor, self.stored[leaf].store
        if tensor.kind not in ("I32", "F8_E4M3"):
            raise self._impossible(f"{leaf} is stored as {tensor.kind}")
        raw = store.read_at(tensor.offset, tensor.num_bytes)
        kind = "<i4" if tensor.kind == "I32" else "u1"
        found: NDArray[np.int32] = np.frombuffer(raw, kind).reshape(tensor.shape)
        return found

    def _floats(self, leaf: str) -> Stored:
        tensor, store = self.stored[leaf].tensor, self.stored[leaf].store
        raw = store.read_at(tensor.offset, tensor.num_bytes)
        if tensor.kind == "BF16":
            wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
            return wide.view(np.float32).reshape(tensor.shape)
        if tensor.kind not in _FLOATS:
            raise self._impossible(f"{leaf} is stored as {tensor.kind}")
        return np.frombuffer(raw, _FLOATS[tensor.kind]).reshape(tensor.shape)

    def _impossible(self, what: str) -> WeightsError:
        return WeightsError(f"{self.label}: tensor {self.name}: {what}", reason="weights_disagree")


def coded_part(
    name: str, quantisation: Quantisation, stored: Mapping[str, StoredIn]
) -> CodedPart | None:
    """The quantised matrix called `name` ("....weight") in a file; None where it is plain there.
    Raises WeightsError where one of its tensors is missing."""
    base, _, leaf = name.rpartition(".")
    if leaf != "weight":
        return None
    optional: tuple[str, ...] = ()
    if quantisation.scheme is Scheme.FP8:
        main = stored.get(name)
        if main is None or main.tensor.kind != "F8_E4M3":
            return None
        is_inverse = f"{base}.weight_scale_inv" in stored
        needed: tuple[str, ...] = ("weight", "weight_scale_inv" if is_inverse else "weight_scale")
    else:
        if f"{base}.qweight" not in stored:
            return None
        needed = ("qweight", "qzeros", "scales")
        optional = ("g_idx",) if quantisation.scheme is Scheme.GPTQ else ()
    found = {word: stored[f"{base}.{word}"] for word in needed if f"{base}.{word}" in stored}
    missing = [word for word in needed if word not in found]
    if missing:
        where = next(iter(found.values())).store.label
        raise WeightsError(
            f"{where} has no tensor {base}.{missing[0]}, which {quantisation.scheme} needs",
            reason="weights_incomplete",
        )
    found |= {word: stored[f"{base}.{word}"] for word in optional if f"{base}.{word}" in stored}
    return CodedPart(name, quantisation, found)


def _unpacked(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    """(rows, n) words to (rows, n, 8) nibbles, the lowest first."""
    pairs = np.ascontiguousarray(words).view(np.uint8)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1)
    return nibbles.reshape(*words.shape, _IN_A_WORD)


def _spread(values: Stored, width: int, group: int) -> Stored:
    """Values (out, groups), the last group perhaps short, for groups that divide `width`."""
    if width % group == 0:
        return np.ascontiguousarray(values)
    narrow = math.gcd(width, group)
    return np.ascontiguousarray(values[:, np.arange(0, width, narrow) // group])
