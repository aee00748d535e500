"""Ranges of a remote file that are on this disk, each named by its place and its sha256."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.errors import ModelError
from plait.models.bytestore import FileStore
from plait.models.disk import PART, append, file_sha256, place

CHUNKS: Final = ".chunks"
"""Beside a long piece: what its chunks hash to (`plait.models.chunks`)."""
_NAME: Final = re.compile(r"(\d+)-(\d+)-([0-9a-f]{64})\.bin")


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Bytes [start, end) of the file."""

    start: int
    end: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.start}-{self.end - self.start}-{self.sha256}.bin"


class PieceFolder:
    """The pieces of one remote file. Several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pieces: dict[tuple[int, int], Piece] = {}
        self.refresh()

    def refresh(self) -> None:
        """Notice what other processes have brought."""
        found: dict[tuple[int, int], Piece] = {}
        for path in sorted(self.folder.glob("*.bin")):
            match = _NAME.fullmatch(path.name)
            if match is not None:
                start, size = int(match[1]), int(match[2])
                found[start, size] = Piece(start, start + size, match[3])
        self._pieces = found  # at once: another thread may be looking

    def __iter__(self) -> Iterator[Piece]:
        return iter(sorted(self._pieces.values()))

    def holding(self, start: int, end: int) -> Piece | None:
        """A piece with all of [start, end)."""
        exact = self.exactly(start, end)
        if exact is not None:
            return exact
        return next((p for p in self if p.start <= start and end <= p.end), None)

    def exactly(self, start: int, end: int) -> Piece | None:
        """The piece that is [start, end). Quick."""
        return self._pieces.get((start, end - start))

    def load(self, piece: Piece) -> bytearray | None:
        """The piece's bytes; None, and the piece is forgotten, where they are damaged."""
        path = self.path(piece)
        try:
            content = bytearray(path.read_bytes())
        except FileNotFoundError:
            content = bytearray()
        if hashlib.sha256(content).hexdigest() == piece.sha256:
            return content
        self._forget(piece)
        return None

    def open(self, piece: Piece) -> FileStore | None:
        """The piece as a file whose content was checked; None, and forgotten, where damaged."""
        path = self.path(piece)
        try:
            store = FileStore(path)
        except ModelError:
            self._forget(piece)
            return None
        if file_sha256(path) == piece.sha256:
            return store
        store.close()
        self._forget(piece)
        return None

    def part_bytes(self, start: int, end: int) -> int:
        """How much of [start, end) an earlier, broken off fetch has left."""
        with contextlib.suppress(FileNotFoundError):
            return min(self.part_path(start, end).stat().st_size, end - start)
        return 0

    def write(self, start: int, end: int, blocks: Iterator[bytes]) -> Piece:
        """Append `blocks` to what a broken off fetch has left, and keep the whole as a piece.

        A network's failure leaves the part for the next try; a full disk removes it.

        Raises:
            WeightsError: reason "disk_full", or what `blocks` raises.
        """
        part = self.part_path(start, end)
        append(part, blocks, end - start)
        return self.adopt(part, start, end)

    def adopt(self, part: Path, start: int, end: int) -> Piece:
        """A file with all of [start, end) becomes a piece."""
        piece = Piece(start, end, file_sha256(part))
        place(part, self.folder / piece.file_name)
        self._pieces[start, end - start] = piece
        return piece

    def path(self, piece: Piece) -> Path:
        """Where a piece lies."""
        return self.folder / piece.file_name

    def part_path(self, start: int, end: int) -> Path:
        """Where a broken off fetch of [start, end) leaves what it had."""
        return self.folder / f"{start}-{end - start}{PART}"

    def _forget(self, piece: Piece) -> None:
        path = self.path(piece)
        for gone in (path, path.with_suffix(CHUNKS)):
            gone.unlink(missing_ok=True)
        self._pieces.pop((piece.start, piece.end - piece.start), None)
