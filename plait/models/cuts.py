"""A part of a matrix, read from a file without the rest of it."""

import math
from collections.abc import Sequence

from plait.models.bytestore import ByteStore, FileStore
from plait.models.rows import RowTable


def read_cut(
    store: ByteStore, table: RowTable, rows: Sequence[range] | None, byte_columns: range | None
) -> memoryview | None:
    """Rows of `table`, rising, and of each the bytes in `byte_columns`; None: all of both.

    None comes back from a remote store: its ranges lie here as whole tensors, each with a digest.
    Raises WeightsError.
    """
    if not isinstance(store, FileStore):
        return None
    columns = byte_columns or range(table.row_bytes)
    unit = math.gcd(columns.start, columns.stop, table.row_bytes)
    per_row = table.row_bytes // unit
    finer = RowTable(offset=table.offset, num_rows=table.num_rows * per_row, row_bytes=unit)
    first, last = columns.start // unit, columns.stop // unit
    stretches = rows if rows is not None else (range(table.num_rows),)
    pieces = [
        row * per_row + piece
        for stretch in stretches
        for row in stretch
        for piece in range(first, last)
    ]
    return store.read_rows(finer, pieces)


def num_rows(rows: Sequence[range] | None, whole: int) -> int:
    """How many rows stretches have together."""
    return whole if rows is None else sum(len(stretch) for stretch in rows)
