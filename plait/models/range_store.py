"""A remote file as a ByteStore: only the ranges that are asked for travel, and only once.

Single rows of a matrix come in pages, so that a prompt costs a few requests and not one per token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from plait.errors import WeightsError
from plait.models.bytestore import FileStore
from plait.models.disk import locked
from plait.models.gate import OPEN, Gate
from plait.models.http_ranges import RangeClient, RemoteFile
from plait.models.pieces import PieceFolder
from plait.models.rows import RowTable
from plait.models.source import ReadProgress
from plait.models.supply import Supply

GAP_BYTES_MAX: Final = 256
"""Ranges this close travel in one request: less than a request's own headers."""


class RangeStore:
    """Ranges come from `pieces` or the network; what the network brings stays in `pieces`."""

    def __init__(
        self,
        file: RemoteFile,
        pieces: PieceFolder,
        client: RangeClient,
        models_dir: Path,
        *,
        gate: Gate = OPEN,
        supply: Supply | None = None,
    ) -> None:
        """`supply` finds ranges nearer than the file's origin; None: all come from there."""
        self.label = file.label
        self.size_bytes = file.size_bytes
        self.content_id: str | None = file.content_id
        self.read_bytes = 0
        self._file = file
        self._pieces = pieces
        self._client = client
        self._models_dir = models_dir
        self._gate = gate
        self._supply = supply
        self._counted: set[tuple[int, int]] = set()
        self._whole: FileStore | None = None

    def read_at(self, offset: int, size: int) -> memoryview:
        if offset < 0 or size < 0 or offset + size > self.size_bytes:
            raise WeightsError(
                f"{self.label} is truncated: it has {self.size_bytes} bytes, "
                f"{offset + size} are needed",
                reason="weights_truncated",
            )
        if size == 0:
            return memoryview(bytearray())
        for _ in range(3):
            piece = self._pieces.holding(offset, offset + size)
            if piece is None:
                self.prefetch([(offset, size)], lambda done, total: None)
                continue
            content = self._pieces.load(piece)
            if content is not None:
                self._count(piece.start, piece.end)
                return memoryview(content)[offset - piece.start : offset - piece.start + size]
        raise WeightsError(f"{self.label}: bytes {offset}-{offset + size} do not stay intact here")

    def prefetch(self, ranges: Sequence[tuple[int, int]], progress: ReadProgress) -> None:
        """Fetch what is not here, adjacent ranges in one request. Raises WeightsError, ModelError.

        Processes on one machine take turns, so that each range travels once.
        """
        self._bring(ranges, progress, lock="")

    def read_rows(self, table: RowTable, rows: Sequence[int]) -> memoryview:
        """From the whole matrix where it is here, else from pages, each checked by its sha256."""
        whole = self._whole_table(table)
        if whole is not None:
            shifted = replace(table, offset=0)
            return whole.read_rows(shifted, rows)
        buffer = memoryview(bytearray(len(rows) * table.row_bytes))
        page, page_start = memoryview(b""), -1
        for index, row in enumerate(rows):
            start, size = table.pages([row])[0]
            if start != page_start:
                page, page_start = self.read_at(start, size), start
            at = table.offset + row * table.row_bytes - start
            taken = page[at : at + table.row_bytes]
            buffer[index * table.row_bytes : (index + 1) * table.row_bytes] = taken
        return buffer

    def has_rows(self, table: RowTable, rows: Sequence[int]) -> bool:
        return self._pieces.exactly(table.offset, table.end) is not None or all(
            self._pieces.exactly(start, start + size) is not None
            for start, size in table.pages(rows)
        )

    def prefetch_rows(self, table: RowTable, rows: Sequence[int]) -> None:
        """Neighbouring pages in one request. Waits for no tensor's fetch."""
        if not self.has_rows(table, rows):
            self._bring(table.pages(rows, fill_gaps=True), lambda done, total: None, lock="-rows")

    def close(self) -> None:
        self._client.close()
        if self._whole is not None:
            self._whole.close()

    def _bring(
        self, ranges: Sequence[tuple[int, int]], progress: ReadProgress, *, lock: str
    ) -> None:
        total = sum(size for _, size in ranges)
        if not self._missing(ranges):
            progress(total, total)
            return
        key = f"{self._file.commit[:16]}-{self._pieces.folder.name}{lock}"
        with locked(self._models_dir, key, waiting=lambda: progress(0, total)):
            self._pieces.refresh()
            missing = self._missing(ranges)
            needed = sum(end - start for start, end in missing)
            self._gate.require_space(self._models_dir, needed)
            done = total - needed
            progress(done, total)

            def advanced(got: int) -> None:
                nonlocal done
                done += got
                progress(min(done, total), total)

            if self._supply is None:
                for got in self._fetch_all(missing):
                    advanced(got)
                return
            self._supply.bring(
                self._file.content_id,
                self._pieces,
                missing,
                fetch=self._fetch_all,
                advanced=advanced,
                is_urgent=lock != "",
            )
            for start, end in missing:
                self._count(start, end)

    def _fetch_all(self, spans: Sequence[tuple[int, int]]) -> Iterator[int]:
        for group in self._groups(list(spans)):
            yield from self._fetch(group)

    def _whole_table(self, table: RowTable) -> FileStore | None:
        """The whole matrix as a file of its own, hashed once and held open from then on."""
        if self._whole is None:
            piece = self._pieces.exactly(table.offset, table.end)
            if piece is not None:
                self._whole = self._pieces.open(piece)
        return self._whole

    def _missing(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        spans = sorted({(offset, offset + size) for offset, size in ranges})
        return [span for span in spans if self._pieces.holding(*span) is None]

    def _groups(self, spans: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        groups: list[list[tuple[int, int]]] = []
        for start, end in spans:
            last_end = groups[-1][-1][1] if groups else None
            is_near = last_end is not None and 0 <= start - last_end <= GAP_BYTES_MAX
            if is_near and self._pieces.part_bytes(start, end) == 0:
                groups[-1].append((start, end))
            else:
                groups.append([(start, end)])
        return groups

    def _fetch(self, group: list[tuple[int, int]]) -> Iterator[int]:
        """One request for the group; yields the bytes of each finished piece."""
        first_start, first_end = group[0]
        resumed = self._pieces.part_bytes(first_start, first_end)
        at = first_start + resumed
        flow = _Flow(self._client.stream(self._file, at, group[-1][1]))
        try:
            for start, end in group:
                flow.skip(max(0, start - at))
                self._pieces.write(start, end, flow.take(end - max(start, at)))
                self._count(start, end)
                at = end
                yield end - start
            flow.end()
        finally:
            flow.close()

    def _count(self, start: int, end: int) -> None:
        if (start, end) not in self._counted:
            self._counted.add((start, end))
            self.read_bytes += end - start


class _Flow:
    """Cuts one stream into pieces."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def take(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes."""
        while size > 0:
            block = self._rest or next(self._blocks)
            self._rest = block[size:]
            yield block[:size]
            size -= min(size, len(block))

    def skip(self, size: int) -> None:
        for _ in self.take(size):
            pass

    def end(self) -> None:
        """Hear that nothing follows: a connection that was read to its end is used again."""
        next(self._blocks, b"")

    def close(self) -> None:
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()
