"""A tensor as a model needs it, out of what safetensors files hold."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from plait.errors import WeightsError
from plait.models.bytestore import ByteStore
from plait.models.hf_names import View
from plait.models.mxfp4 import dequantised
from plait.models.safetensors_header import StoredTensor, float_type
from plait.types import DType

MXFP4_BLOCK = 32
_BYTES_KIND = "U8"
T = TypeVar("T", bound=np.generic)
Range = tuple[int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredIn:
    """A tensor and the file it is in."""

    tensor: StoredTensor
    store: ByteStore

    def expert_bytes(self, expert: int) -> tuple[ByteStore, Range]:
        """Where one of the stack lies: offset and bytes."""
        size = self.tensor.num_bytes // self.tensor.shape[0]
        return self.store, (self.tensor.offset + expert * size, size)


@dataclass(frozen=True, slots=True)
class Part:
    """A view into `main`, with the scales of MXFP4 where it has some."""

    view: View
    main: StoredIn
    scales: StoredIn | None = None

    @property
    def kind(self) -> str:
        """The element type, in the format's word."""
        return self.main.tensor.kind if self.scales is None else "MXFP4"

    @property
    def label(self) -> str:
        return self.main.store.label

    def shape(self) -> Shape:
        """As the model needs it. Raises WeightsError for a stack without such a place or width."""
        tensor, view = self.main.tensor, self.view
        if view.expert is None:
            return tensor.shape
        if len(tensor.shape) < 2 or view.expert >= tensor.shape[0]:
            raise self._impossible(f"shape {tensor.shape} has no expert {view.expert}")
        shape = self._mxfp4_shape() if self.scales is not None else tensor.shape[1:]
        if view.is_transposed:
            shape = shape[::-1]
        if view.half is not None:
            shape = (shape[0] // 2, *shape[1:])
        return shape

    def ranges(self) -> list[tuple[ByteStore, Range]]:
        """Files and bytes that `read` needs."""
        view = self.view
        if view.expert is None:
            return [(self.main.store, (self.main.tensor.offset, self.main.tensor.num_bytes))]
        found = [self.main.expert_bytes(view.expert)]
        return found if self.scales is None else [*found, self.scales.expert_bytes(view.expert)]

    def stored_bytes(self) -> int:
        """Bytes that are this tensor's own."""
        total = sum(size for _, (_, size) in self.ranges())
        return total if self.view.half is None else total // 2

    def read(self) -> tuple[memoryview, DType]:
        """Row-major bytes in `shape()`. Raises WeightsError."""
        if self.scales is not None:
            return self._read_mxfp4().reshape(-1).view(np.uint8).data, DType.FLOAT32
        dtype = float_type(self.main.tensor, self.label)
        raw = self._read(self.main)
        if self.view.expert is None:
            return raw, dtype
        bits = np.frombuffer(raw, dtype=f"<u{dtype.num_bytes}").reshape(self.main.tensor.shape[1:])
        cut = np.ascontiguousarray(_half(bits.T if self.view.is_transposed else bits, self.view))
        return cut.reshape(-1).view(np.uint8).data, dtype

    def _read_mxfp4(self) -> NDArray[np.float32]:
        assert self.scales is not None
        for stored in (self.main, self.scales):
            if stored.tensor.kind != _BYTES_KIND:
                raise self._impossible(f"{stored.tensor.name} is stored as {stored.tensor.kind}")
        blocks = np.frombuffer(self._read(self.main), np.uint8).reshape(self.main.tensor.shape[1:])
        scales = np.frombuffer(self._read(self.scales), np.uint8).reshape(blocks.shape[:-1])
        return dequantised(_half(blocks, self.view), _half(scales, self.view))

    def _read(self, stored: StoredIn) -> memoryview:
        if self.view.expert is None:
            return stored.store.read_at(stored.tensor.offset, stored.tensor.num_bytes)
        store, (offset, size) = stored.expert_bytes(self.view.expert)
        return store.read_at(offset, size)

    def _mxfp4_shape(self) -> Shape:
        """Blocks (experts, rows, blocks, 16) and scales (experts, rows, blocks) of one expert."""
        assert self.scales is not None
        blocks, scales = self.main.tensor.shape, self.scales.tensor.shape
        if len(blocks) != 4 or blocks[3] * 2 != MXFP4_BLOCK or scales != blocks[:3]:
            raise self._impossible(f"blocks {blocks} and scales {scales} are not MXFP4")
        return (blocks[1], blocks[2] * MXFP4_BLOCK)

    def _impossible(self, what: str) -> WeightsError:
        return WeightsError(
            f"{self.label}: tensor {self.main.tensor.name}: {what}", reason="weights_disagree"
        )


def _half(rows: NDArray[T], view: View) -> NDArray[T]:
    """Of interleaved rows, those of this view."""
    return rows if view.half is None else rows[view.half :: 2]
