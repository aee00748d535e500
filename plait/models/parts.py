"""A range that comes in chunks, from several places at once: those that are right stay."""

import hashlib
from pathlib import Path
from typing import Final

from plait.models.chunks import chunk_hashes
from plait.models.disk import PART, storing
from plait.models.pieces import Piece, PieceFolder
from plait.types.weights import CHUNK_BYTES, ChunkHashes, FileRange

_NEAR: Final = ".near"


class RangeParts:
    """The chunks of one range that are here, beside the pieces of its file. What a process that
    ended has left is read again and compared: no list of it is believed."""

    def __init__(self, pieces: PieceFolder, wanted: FileRange, hashes: ChunkHashes) -> None:
        self._pieces = pieces
        self._range = wanted
        self.hashes = hashes
        self._path = _near_path(pieces, wanted)
        self.here = self._found()

    @property
    def is_complete(self) -> bool:
        return len(self.here) == len(self.hashes)

    def fits(self, chunk: int, content: bytes) -> bool:
        """Whether these bytes are the chunk's."""
        is_long_enough = len(content) == self._range.chunk(chunk).size
        return is_long_enough and hashlib.sha256(content).digest() == self.hashes[chunk]

    def keep(self, chunk: int, content: bytes) -> None:
        """Write a chunk that fits. Raises WeightsError(reason="disk_full")."""
        with storing(self._path.parent, self._range.size):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            with self._path.open("r+b") as out:  # other threads write beside this
                out.seek(self._range.chunk(chunk).start - self._range.start)
                out.write(content)
        self.here.add(chunk)

    def finish(self) -> Piece:
        """The whole range as a piece; every chunk must be here."""
        return self._pieces.adopt(self._path, self._range.start, self._range.end)

    def hand_over(self) -> None:
        """The origin is asked for the rest: what is right from the first byte on is its start."""
        num_leading = next((i for i in range(len(self.hashes)) if i not in self.here), 0)
        if num_leading > 0:
            with self._path.open("r+b") as out:
                out.truncate(num_leading * CHUNK_BYTES)
            self._path.replace(self._pieces.part_path(self._range.start, self._range.end))
        self.here = set()

    def _found(self) -> set[int]:
        """Chunks of an earlier process, or of a fetch from the origin that broke off."""
        left = self._pieces.part_path(self._range.start, self._range.end)
        if not self._path.exists() and left.exists():
            left.replace(self._path)
        if not self._path.exists():
            return set()
        size = min(self._path.stat().st_size, self._range.size)
        found = chunk_hashes(self._path, 0, size)
        return {i for i, (a, b) in enumerate(zip(found, self.hashes, strict=False)) if a == b}


def drop_parts(pieces: PieceFolder, wanted: FileRange) -> None:
    """The range is here by another way."""
    _near_path(pieces, wanted).unlink(missing_ok=True)


def _near_path(pieces: PieceFolder, wanted: FileRange) -> Path:
    return pieces.folder / f"{wanted.start}-{wanted.size}{_NEAR}{PART}"
