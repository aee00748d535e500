"""Finished requests, the newest only. Counts and times; never a prompt or an answer."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import Row, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from coordinator.ports import PastRequest
from coordinator.shell.store_pruning import Pruning, beyond_newest
from coordinator.shell.store_session import transaction
from coordinator.shell.store_tables import finished_requests

ROWS_MAX: Final = 10_000
PRUNED_EVERY: Final = 100


class RequestHistory:
    """At most `rows_max` and `pruned_every` requests; the oldest go first."""

    def __init__(
        self, engine: AsyncEngine, *, rows_max: int = ROWS_MAX, pruned_every: int = PRUNED_EVERY
    ) -> None:
        self.engine = engine
        self._pruning = Pruning(beyond_newest(finished_requests, rows_max), every=pruned_every)

    async def record(self, requests: Sequence[PastRequest]) -> None:
        """Add requests, in one transaction."""
        if not requests:
            return
        async with transaction(self.engine) as connection:
            await connection.execute(
                insert(finished_requests), [asdict(request) for request in requests]
            )
            await self._pruning.after(connection, len(requests))

    async def recent(self, limit: int, *, key_id: str | None = None) -> Sequence[PastRequest]:
        """The newest requests, of one key or of all, newest first."""
        return (await self.page(offset=0, limit=limit, key_id=key_id or ""))[0]

    async def page(
        self, *, offset: int, limit: int, model_id: str = "", key_id: str = "", outcome: str = ""
    ) -> tuple[Sequence[PastRequest], int]:
        """Requests, newest first, and how many there are in all; "" asks for any."""
        columns = finished_requests.c
        wanted = (
            (columns.model_id, model_id),
            (columns.key_id, key_id),
            (columns.finish_reason, outcome),
        )
        conditions = [column == value for column, value in wanted if value]
        count = select(func.count()).select_from(finished_requests).where(*conditions)
        query = select(finished_requests).where(*conditions).order_by(columns.sequence.desc())
        async with transaction(self.engine) as connection:
            total = (await connection.execute(count)).scalar_one()
            rows = (await connection.execute(query.offset(offset).limit(limit))).all()
        return [_request(row) for row in rows], total

    async def find(self, request_id: str) -> PastRequest | None:
        """The last that ended with that id."""
        columns = finished_requests.c
        query = select(finished_requests).where(columns.request_id == request_id)
        async with transaction(self.engine) as connection:
            found = await connection.execute(query.order_by(columns.sequence.desc()).limit(1))
            row = found.one_or_none()
        return None if row is None else _request(row)


def _request(row: Row[tuple[object, ...]]) -> PastRequest:
    named = row._mapping
    return PastRequest(**{name: named[name] for name in PastRequest.__dataclass_fields__})
