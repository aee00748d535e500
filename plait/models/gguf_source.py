"""A GGUF as a TensorSource: names, layouts and element types become Hugging Face's, per tensor."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from plait.errors import ModelError, WeightsError
from plait.models.bytestore import ByteStore
from plait.models.coded import CodedMatrix
from plait.models.cuts import num_rows, read_cut
from plait.models.finite import require_finite
from plait.models.gguf_blocks import CODED_QUANTS, coded_from_blocks
from plait.models.gguf_header import GgufHeader, GgufTensor, read_header
from plait.models.gguf_names import NOT_WEIGHTS, gguf_name
from plait.models.gguf_spec import spec_from_gguf
from plait.models.layout import check_layout
from plait.models.manifest import content_mark, manifest_digest
from plait.models.rows import RowTable
from plait.models.source import ReadProgress, TensorData
from plait.models.tensors import span_tensor_names
from plait.types import Architecture, DType, ModelId, ModelSpec

_STORED_AS: Final = {
    GGMLQuantizationType.F32: DType.FLOAT32,
    GGMLQuantizationType.F16: DType.FLOAT16,
    GGMLQuantizationType.BF16: DType.BFLOAT16,
}

_PERMUTED: Final = ("llama", "smollm3")
"""Architectures, by llama.cpp's name, that it rotates in neighbouring channels."""

_NORMS_FROM_ONE: Final = (Architecture.GEMMA2, Architecture.GEMMA3)


class GgufSource:
    """Reads one tensor's bytes at a time. Raises ModelError or WeightsError when opened."""

    def __init__(
        self, store: ByteStore, model_id: ModelId, *, block_bytes: int = 256 * 1024
    ) -> None:
        self._store = store
        self.header: GgufHeader = read_header(store, block_bytes=block_bytes)
        self.spec: ModelSpec = spec_from_gguf(self.header, store, model_id)
        self._tensors = _tensors(self.spec, self.header, store.label)
        self._is_permuted = self.header.metadata["general.architecture"] in _PERMUTED
        where = dict.fromkeys(("", *self._tensors), store.label)
        check_layout(self.spec, {n: t.shape for n, t in self._tensors.items()}, where=where)
        places = [(t.offset, t.num_bytes) for t in self.header.tensors.values()]
        mark = content_mark(store, places)
        self.digest: str = manifest_digest([("gguf", store.size_bytes, self.header.sha256, mark)])

    @property
    def total_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self._tensors.values())

    @property
    def read_bytes(self) -> int:
        return self._store.read_bytes

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def stored_types(self) -> Counter[str]:
        """Bytes of each element type, by GGUF's name of it."""
        types: Counter[str] = Counter()
        for tensor in self._tensors.values():
            types[tensor.quant.name] += tensor.num_bytes
        return types

    def stored_bytes(self, name: str) -> int:
        return self._tensor(name).num_bytes

    def read(self, name: str) -> TensorData:
        """One tensor; quantised ones come as float32. Raises WeightsError."""
        tensor = self._tensor(name)
        return self._as_data(name, self._stored_rows(name, tensor), tensor, tensor.shape)

    def read_coded(self, name: str) -> CodedMatrix | None:
        """One matrix as its blocks' codes; None where it has none. Raises WeightsError."""
        tensor = self._tensor(name)
        if tensor.quant not in CODED_QUANTS or len(tensor.shape) != 2:
            return None
        coded = coded_from_blocks(self._stored_rows(name, tensor), tensor.quant)
        if coded is not None:
            coded.require_finite(name=name, where=self._store.label)
        return coded

    def read_cut(
        self, name: str, rows: Sequence[range] | None, columns: range | None
    ) -> TensorData | None:
        """Rows, one stretch after the other, and of these some columns; None: all. None comes back
        where a cut would divide a block, or a head whose channels lie in another order here. Raises
        WeightsError."""
        tensor = self._tensor(name)
        if len(tensor.shape) != 2:
            return None
        found, width = num_rows(rows, tensor.shape[0]), columns or range(tensor.shape[1])
        per_block, block_bytes = GGML_QUANT_SIZES[tensor.quant]
        is_permuted = self._permuted_heads(name) is not None
        if width.start % per_block or width.stop % per_block:
            return None
        if is_permuted and any(r.start % self.spec.head_dim for r in rows or ()):
            return None
        at = range(width.start // per_block * block_bytes, width.stop // per_block * block_bytes)
        row_bytes = tensor.num_bytes // tensor.shape[0]
        table = RowTable(offset=tensor.offset, num_rows=tensor.shape[0], row_bytes=row_bytes)
        raw = read_cut(self._store, table, rows, at)
        if raw is None:
            return None
        stored = np.frombuffer(raw, dtype=np.uint8).reshape(found, len(at))
        shape = (found, len(width))
        if is_permuted:
            cut = replace(tensor, shape=shape)
            stored = _undo_rope_permutation(stored, found // self.spec.head_dim, cut)
        return self._as_data(name, stored, tensor, shape)

    def read_rows(self, name: str, rows: Sequence[int]) -> TensorData:
        """Rows of a matrix whose rows lie in Hugging Face's order (not q and k of "llama")."""
        tensor, table = self._tensor(name), self._table(name)
        raw = self._store.read_rows(table, rows)
        stored = np.frombuffer(raw, dtype=np.uint8).reshape(len(rows), table.row_bytes)
        return self._as_data(name, stored, tensor, (len(rows), tensor.shape[-1]))

    def has_rows(self, name: str, rows: Sequence[int]) -> bool:
        return self._store.has_rows(self._table(name), rows)

    def prefetch_rows(self, name: str, rows: Sequence[int]) -> None:
        self._store.prefetch_rows(self._table(name), rows)

    def prefetch(self, names: Sequence[str], progress: ReadProgress) -> None:
        """Bring these tensors to this machine, where they are elsewhere."""
        tensors = [self._tensor(name) for name in names]
        self._store.prefetch([(t.offset, t.num_bytes) for t in tensors], progress)

    def close(self) -> None:
        self._store.close()

    def _stored_rows(self, name: str, tensor: GgufTensor) -> NDArray[np.uint8]:
        """Bytes of each row, rows in Hugging Face's order."""
        raw = self._store.read_at(tensor.offset, tensor.num_bytes)
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(
            math.prod(tensor.shape[:-1]), tensor.num_bytes // math.prod(tensor.shape[:-1])
        )
        num_heads = self._permuted_heads(name)
        return rows if num_heads is None else _undo_rope_permutation(rows, num_heads, tensor)

    def _tensor(self, name: str) -> GgufTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise WeightsError(
                f"{self._store.label} has no tensor {name}", reason="weights_incomplete"
            )
        return tensor

    def _table(self, name: str) -> RowTable:
        tensor = self._tensor(name)
        assert len(tensor.shape) == 2 and self._permuted_heads(name) is None, name
        num_rows = tensor.shape[0]
        return RowTable(
            offset=tensor.offset, num_rows=num_rows, row_bytes=tensor.num_bytes // num_rows
        )

    def _as_data(
        self, name: str, rows: NDArray[np.uint8], tensor: GgufTensor, shape: tuple[int, ...]
    ) -> TensorData:
        dtype = _STORED_AS.get(tensor.quant)
        if dtype is None:
            dtype, rows = DType.FLOAT32, self._dequantised(rows, tensor).view(np.uint8)
        if self._is_gamma_from_one(name):
            dtype, rows = DType.FLOAT32, _less_one(rows, dtype)
        buffer = np.ascontiguousarray(rows).reshape(-1).data
        require_finite(buffer, dtype, name=name, where=self._store.label)
        return TensorData(name=name, dtype=dtype, shape=shape, buffer=buffer)

    def _permuted_heads(self, name: str) -> int | None:
        """llama.cpp stores q and k of `_PERMUTED` with interleaved rotary halves."""
        if not self._is_permuted:
            return None
        if ".q_proj." in name:
            return self.spec.num_heads
        return self.spec.num_kv_heads if ".k_proj." in name else None

    def _is_gamma_from_one(self, name: str) -> bool:
        """llama.cpp stores the norms of Gemma as they are multiplied with, one more than in
        Hugging Face's files."""
        return self.spec.architecture in _NORMS_FROM_ONE and name.endswith("norm.weight")

    def _dequantised(self, rows: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.float32]:
        try:
            values: NDArray[np.float32] = dequantize(rows, tensor.quant)
        except NotImplementedError:
            raise ModelError(
                f"{self._store.label}: tensor {tensor.name} has element type "
                f"{tensor.quant.name}, which plait cannot read",
                reason="model_unsupported",
            ) from None
        return values


def _tensors(spec: ModelSpec, header: GgufHeader, label: str) -> dict[str, GgufTensor]:
    """What is there of the model's tensors; an expert is a piece of its stack. Raises ModelError
    for a tensor that is none of them."""
    found: dict[str, GgufTensor] = {}
    used = set(NOT_WEIGHTS)
    for name in span_tensor_names(spec, spec.whole):
        place = gguf_name(spec, name)
        used.add(place.stored)
        tensor = header.tensors.get(place.stored)
        if tensor is not None:
            found[name] = tensor if place.expert is None else _piece(tensor, place.expert, label)
    for stored in header.tensors:
        if stored not in used:
            raise ModelError(
                f"{label}: tensor {stored} is not part of a {spec.architecture} model that plait "
                "runs",
                reason="model_unsupported",
            )
    return found


def _piece(stack: GgufTensor, expert: int, label: str) -> GgufTensor:
    """One of a stack (experts, ...). Raises WeightsError where the stack is too low."""
    if len(stack.shape) < 2 or expert >= stack.shape[0]:
        raise WeightsError(
            f"{label}: tensor {stack.name} of shape {stack.shape} has no expert {expert}",
            reason="weights_disagree",
        )
    size = stack.num_bytes // stack.shape[0]
    return replace(
        stack, shape=stack.shape[1:], offset=stack.offset + expert * size, num_bytes=size
    )


def _less_one(rows: NDArray[np.uint8], dtype: DType) -> NDArray[np.uint8]:
    """Elements of any stored type, as float32 and one less."""
    if dtype is DType.BFLOAT16:
        values = (rows.view("<u2").astype(np.uint32) << 16).view("<f4")
    else:
        values = rows.view("<f4" if dtype is DType.FLOAT32 else "<f2").astype(np.float32)
    return (values - 1).view(np.uint8)


def _undo_rope_permutation(
    rows: NDArray[np.uint8], num_heads: int, tensor: GgufTensor
) -> NDArray[np.uint8]:
    """Output rows back into Hugging Face's order: (head, pair, half) becomes (head, half, pair).

    Works on the stored rows, since a row is dequantised by itself. A bias is one row of elements.
    """
    is_bias = len(tensor.shape) == 1
    elements = rows.reshape(tensor.shape[0], -1) if is_bias else rows
    by_pair = elements.reshape(num_heads, -1, 2, elements.shape[-1])
    return np.ascontiguousarray(by_pair.swapaxes(1, 2)).reshape(rows.shape)
