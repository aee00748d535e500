"""The part of a model that one rank holds, as a source of tensors of its own."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from node.engine.parallel.split import Cut, Split, cut_of
from plait.models.coded import CodedMatrix
from plait.models.opening import prefetch
from plait.models.source import ReadProgress, TensorData, TensorSource, read_coded
from plait.types import ModelSpec


@runtime_checkable
class CutReader(Protocol):
    """A source that can read a part of a matrix without the rest of it."""

    def read_cut(
        self, name: str, rows: Sequence[range] | None, columns: range | None
    ) -> TensorData | None:
        """Rows of a tensor, one stretch after the other, and of these some columns; None: all. None
        comes back where it has to be read as a whole. Raises WeightsError."""
        ...


class RankSource:
    """`source` as rank `split.rank` sees it: tensors have the shapes of `rank_spec`.

    Only the rank's bytes are read where `source` can do that. Rows of the embedding are whole: the
    first rank looks them up for all.
    """

    def __init__(self, source: TensorSource, spec: ModelSpec, split: Split) -> None:
        self._source = source
        self._whole = spec
        self._split = split
        self._shared = hashlib.sha256()

    @property
    def spec(self) -> ModelSpec:
        return self._source.spec

    @property
    def digest(self) -> str:
        return self._source.digest

    @property
    def total_bytes(self) -> int:
        return self._source.total_bytes

    @property
    def read_bytes(self) -> int:
        return self._source.read_bytes

    @property
    def shared_digest(self) -> str:
        """sha256 (hex) of what was read of tensors that all ranks hold whole, as their norms."""
        return self._shared.hexdigest()

    def tensor_names(self) -> frozenset[str]:
        return self._source.tensor_names()

    def stored_bytes(self, name: str) -> int:
        """About this rank's share."""
        stored = self._source.stored_bytes(name)
        cut = cut_of(self._whole, self._split, name)
        return stored if cut.is_whole else stored // self._split.num_ranks

    def read(self, name: str) -> TensorData:
        """This rank's part. Raises WeightsError."""
        cut = cut_of(self._whole, self._split, name)
        if cut.is_whole:
            found = self._source.read(name)
            self._shared.update(name.encode())
            self._shared.update(found.buffer)
            return found if not cut.is_once or self._split.rank == 0 else _zeros(found)
        part: TensorData | None = None
        if isinstance(self._source, CutReader):
            part = self._source.read_cut(name, cut.rows, cut.columns)
        return cut_out(self._source.read(name), cut) if part is None else part

    def read_coded(self, name: str) -> CodedMatrix | None:
        """This rank's part of a matrix that the file has as codes. Raises WeightsError."""
        coded = read_coded(self._source, name)
        cut = cut_of(self._whole, self._split, name)
        return coded if coded is None or cut.is_whole else coded.cut(cut.rows, cut.columns)

    def read_rows(self, name: str, rows: Sequence[int]) -> TensorData:
        return self._source.read_rows(name, rows)

    def has_rows(self, name: str, rows: Sequence[int]) -> bool:
        return self._source.has_rows(name, rows)

    def prefetch_rows(self, name: str, rows: Sequence[int]) -> None:
        self._source.prefetch_rows(name, rows)

    def prefetch(self, names: Sequence[str], progress: ReadProgress) -> None:
        prefetch(self._source, names, progress)

    def close(self) -> None:
        self._source.close()


def cut_out(found: TensorData, cut: Cut) -> TensorData:
    """A part of a tensor in memory."""
    bits = np.frombuffer(found.buffer, dtype=f"<u{found.dtype.num_bytes}").reshape(found.shape)
    if cut.rows is not None:
        bits = np.concatenate([bits[rows.start : rows.stop] for rows in cut.rows])
    if cut.columns is not None:
        bits = bits[:, cut.columns.start : cut.columns.stop]
    buffer = np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data
    return replace(found, shape=bits.shape, buffer=buffer)


def _zeros(found: TensorData) -> TensorData:
    return replace(found, buffer=memoryview(bytes(len(found.buffer))))
