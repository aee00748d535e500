"""Weights on this disk that others may have: found by ids, never by paths that somebody names."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from plait.models.chunks import kept_hashes
from plait.models.disk import size_or_zero
from plait.models.pieces import PieceFolder
from plait.models.records import load_record, record_folders
from plait.types.weights import ChunkHashes, FileRange


@dataclass(slots=True)
class _Book:
    """One file: its pieces, and the whole of it where that is here."""

    size_bytes: int
    pieces: PieceFolder
    whole: Path | None
    paths: dict[FileRange, Path] = field(default_factory=dict)


class Shelf:
    """The hub's and the catalogue's models in a folder. Any thread may ask."""

    def __init__(self, models_dir: Path) -> None:
        self._models_dir = models_dir
        self._lock = threading.Lock()
        self._books: dict[str, _Book] = {}

    def look(self, content_ids: frozenset[str]) -> None:
        """Notice what is here of files with these ids; all others are none of anybody's business.
        Raises WeightsError for a damaged record."""
        books: dict[str, _Book] = {}
        for folder in record_folders(self._models_dir):
            record = load_record(folder)
            for file in record.files if record is not None else ():
                content_id = file.content_id or file.sha256 or ""
                if content_id not in content_ids:
                    continue
                path = folder / file.name
                is_whole = file.sha256 is not None and size_or_zero(path) == file.size_bytes
                pieces = PieceFolder(folder / "ranges" / file.name.replace("/", "--"))
                book = _Book(file.size_bytes, pieces, path if is_whole else None)
                if content_id not in books or is_whole:
                    books[content_id] = book
        for book in books.values():
            _index(book)
        with self._lock:
            for content_id, book in books.items():
                old = self._books.get(content_id)
                if old is not None:  # what came while this looked
                    book.paths = {**old.paths, **book.paths}
            self._books = books

    def content_ids(self) -> tuple[str, ...]:
        """Files of which something is here."""
        with self._lock:
            return tuple(i for i, b in self._books.items() if b.whole is not None or b.paths)

    def is_whole(self, content_id: str) -> bool:
        with self._lock:
            book = self._books.get(content_id)
            return book is not None and book.whole is not None

    def ranges(self, content_id: str) -> tuple[FileRange, ...]:
        """Ranges of a file that are here by themselves."""
        with self._lock:
            book = self._books.get(content_id)
            return tuple(sorted(book.paths)) if book is not None else ()

    def add(self, content_id: str, wanted: FileRange, path: Path) -> None:
        """A range has come, of a file that is on the shelf or will be with this."""
        with self._lock:
            book = self._books.get(content_id)
            if book is None:
                book = _Book(0, PieceFolder(path.parent), None)
                self._books[content_id] = book
            book.paths[wanted] = path

    def hashes(self, content_id: str, wanted: FileRange) -> ChunkHashes | None:
        """Of a range that is here by itself; reads it where it is long and was never asked for."""
        path = self._path(content_id, wanted)
        if path is None:
            return None
        try:
            return kept_hashes(path, wanted.size)
        except OSError:
            return None

    def read(self, content_id: str, wanted: FileRange, chunk: int) -> bytes | None:
        """A chunk's bytes, unchecked: who gets them compares. None where they are not here."""
        if not 0 <= chunk < wanted.num_chunks:
            return None
        place = wanted.chunk(chunk)
        with self._lock:
            book = self._books.get(content_id)
            whole = book.whole if book is not None else None
            size_bytes = book.size_bytes if book is not None else 0
        if whole is not None and place.end <= size_bytes:
            path, at = whole, place.start
        else:
            found = self._path(content_id, wanted)
            if found is None:
                return None
            path, at = found, place.start - wanted.start
        try:
            with path.open("rb") as file:
                file.seek(at)
                content = file.read(place.size)
        except OSError:
            return None
        return content if len(content) == place.size else None

    def _path(self, content_id: str, wanted: FileRange) -> Path | None:
        with self._lock:
            book = self._books.get(content_id)
            return book.paths.get(wanted) if book is not None else None


def _index(book: _Book) -> None:
    for piece in book.pieces:
        wanted = FileRange(piece.start, piece.end - piece.start)
        book.paths[wanted] = book.pieces.folder / piece.file_name
