"""Registers of the newest rows: cut to their size now and then, not with every write."""

from sqlalchemy import Delete, Table, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection


class Pruning:
    """`gone` are the rows that are too many. They go with the first write, which finds what a past
    run left, and again whenever `every` more have been written."""

    def __init__(self, gone: Delete, *, every: int) -> None:
        self._gone = gone
        self._every = every
        self._num_written = every

    async def after(self, connection: AsyncConnection, num_rows: int) -> None:
        """So many rows were written in this transaction."""
        self._num_written += num_rows
        if self._num_written >= self._every:
            await connection.execute(self._gone)
            self._num_written = 0


def beyond_newest(table: Table, rows_max: int) -> Delete:
    """All rows of a table with a `sequence`, but for the last `rows_max`."""
    sequence = table.c.sequence
    newest = select(func.max(sequence)).scalar_subquery()
    return delete(table).where(sequence <= newest - rows_max)
