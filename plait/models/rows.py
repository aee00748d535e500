"""Single rows of a matrix that lies in a file: where they are, and which of them lie together."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

PAGE_BYTES: Final = 256 * 1024
"""What travels at once from a remote file: on a home line a request costs about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """A matrix in a file: `num_rows` rows of `row_bytes` from byte `offset` on."""

    offset: int
    num_rows: int
    row_bytes: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.num_rows * self.row_bytes

    @property
    def rows_per_page(self) -> int:
        return max(1, PAGE_BYTES // self.row_bytes)

    def pages(self, rows: Iterable[int], *, fill_gaps: bool = False) -> list[tuple[int, int]]:
        """(offset, bytes) of the pages that hold `rows`, in order, each once.

        With `fill_gaps` a page between two wanted ones comes along, so that one request does.
        """
        wanted = {row // self.rows_per_page for row in rows}
        if fill_gaps:
            wanted |= {page + 1 for page in wanted if page + 2 in wanted}
        page_bytes = self.rows_per_page * self.row_bytes
        starts = [self.offset + page * page_bytes for page in sorted(wanted)]
        return [(start, min(page_bytes, self.end - start)) for start in starts]


def row_runs(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """[start, end) of each run of neighbouring rows; `rows` must rise."""
    for _, run in groupby(enumerate(rows), key=lambda at: at[1] - at[0]):
        run_rows = [row for _, row in run]
        yield run_rows[0], run_rows[-1] + 1
