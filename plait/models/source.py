"""How weights are read, whatever they are stored in. No torch here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from plait.models.coded import CodedMatrix
from plait.types import DType, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorData:
    """One tensor: row-major little-endian bytes of `dtype`, in Hugging Face's name and layout."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    buffer: memoryview


class TensorSource(Protocol):
    """An opened model. Names and layouts are Hugging Face's, e.g.
    `model.layers.3.self_attn.q_proj.weight` (out, in); a GGUF is mapped and dequantised."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def digest(self) -> str:
        """sha256 (hex) of the weights' manifest: the same on every node for the same weights."""
        ...

    @property
    def total_bytes(self) -> int:
        """Size of all tensors as stored."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes read from the store so far, headers included."""
        ...

    def tensor_names(self) -> frozenset[str]: ...

    def stored_bytes(self, name: str) -> int:
        """Size of one tensor as stored."""
        ...

    def read(self, name: str) -> TensorData:
        """Read one tensor, and only its bytes. Raises WeightsError."""
        ...

    def read_rows(self, name: str, rows: Sequence[int]) -> TensorData:
        """Some rows of a matrix, rising, (len(rows), columns), bit for bit as `read` has them.

        Reads the rows' own bytes from a file; from a remote one, what lies around them too, once.
        Safe beside `prefetch_rows` in another thread. Raises WeightsError.
        """
        ...

    def has_rows(self, name: str, rows: Sequence[int]) -> bool:
        """Whether `read_rows` would find these rows without a network. Quick."""
        ...

    def prefetch_rows(self, name: str, rows: Sequence[int]) -> None:
        """Bring rows to this machine, where they are elsewhere. Raises WeightsError, ModelError."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class CodedSource(Protocol):
    """A source whose matrices may be codes with scales."""

    def read_coded(self, name: str) -> CodedMatrix | None:
        """One matrix as the file has it, and only its bytes; None where it is no codes. Raises
        WeightsError."""
        ...


def read_coded(source: TensorSource, name: str) -> CodedMatrix | None:
    """A matrix as codes, where `source` has it so. Raises WeightsError."""
    return source.read_coded(name) if isinstance(source, CodedSource) else None


ReadProgress = Callable[[int, int], None]
