"""The last requests that ended, whole: where they ran and why there. What `RequestHistory` keeps of
ten times as many is counts. Never a prompt or an answer."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import Row, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from coordinator.ports import KeptRequest
from coordinator.shell.store_pruning import Pruning, beyond_newest
from coordinator.shell.store_session import transaction
from coordinator.shell.store_tables import finished_routes
from coordinator.view_json import request_from_json, request_to_json
from plait.errors import FrameError

ROWS_MAX: Final = 1_000
PRUNED_EVERY: Final = 100
REQUEST_CHARS_MAX: Final = 65_536
"""Of a longer one the chains that were considered are not kept."""
ID_CHARS_MAX: Final = 64


class RequestRoutes:
    """A `RouteArchive` of at most `rows_max` and `pruned_every` requests; the oldest go first."""

    def __init__(
        self, engine: AsyncEngine, *, rows_max: int = ROWS_MAX, pruned_every: int = PRUNED_EVERY
    ) -> None:
        self._engine = engine
        self._pruning = Pruning(beyond_newest(finished_routes, rows_max), every=pruned_every)

    async def record(self, requests: Sequence[KeptRequest]) -> None:
        """Add requests, in one transaction."""
        if not requests:
            return
        async with transaction(self._engine) as connection:
            rows = [_row(kept) for kept in requests]
            await connection.execute(insert(finished_routes), rows)
            await self._pruning.after(connection, len(rows))

    async def recent(self, limit: int) -> Sequence[KeptRequest]:
        """The newest first."""
        query = select(finished_routes).order_by(finished_routes.c.sequence.desc()).limit(limit)
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        # A thousand of them may be a second's work.
        return await asyncio.to_thread(_all_kept, rows)

    async def find(self, beginning: str) -> KeptRequest | None:
        """The last that ended with that id, or the only one whose id begins so."""
        if not beginning:
            return None
        column, newest = finished_routes.c.request_id, finished_routes.c.sequence.desc()
        exact = select(finished_routes).where(column == beginning).order_by(newest).limit(1)
        ids = select(column).where(column.startswith(beginning, autoescape=True)).distinct()
        async with transaction(self._engine) as connection:
            row = (await connection.execute(exact)).one_or_none()
            if row is None:
                found = (await connection.execute(ids.limit(2))).scalars().all()
                if len(found) != 1:
                    return None
                exact = select(finished_routes).where(column == found[0])
                row = (await connection.execute(exact.order_by(newest).limit(1))).one_or_none()
        return None if row is None else _kept(row)


def _row(kept: KeptRequest) -> dict[str, str]:
    text = request_to_json(kept.request)
    if len(text) > REQUEST_CHARS_MAX:
        bare = tuple(replace(each, considered=()) for each in kept.request.decisions)
        text = request_to_json(replace(kept.request, decisions=bare))
    return {
        "request_id": kept.request.request_id[:ID_CHARS_MAX],
        "request": text,
        "names": json.dumps(dict(kept.names), ensure_ascii=False),
    }


def _all_kept(rows: Sequence[Row[tuple[object, ...]]]) -> list[KeptRequest]:
    return [kept for row in rows if (kept := _kept(row)) is not None]


def _kept(row: Row[tuple[object, ...]]) -> KeptRequest | None:
    """None for one that another version wrote so that this one cannot read it."""
    named = row._mapping
    try:
        return KeptRequest(
            request=request_from_json(named["request"]), names=json.loads(named["names"])
        )
    except (FrameError, ValueError):
        return None
