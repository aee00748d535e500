"""Finished requests, the newest only. Counts and times; never a prompt or an answer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from coordinator.shell.store_session import transaction
from coordinator.shell.store_tables import finished_requests

ROWS_MAX: Final = 10_000
PRUNED_EVERY: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """How one request ended. Times in ms; `ttft_ms` None where no token came."""

    request_id: str
    model_id: str
    key_id: str
    finish_reason: str
    reason: str
    prompt_tokens: int
    generated_tokens: int
    num_attempts: int
    ttft_ms: float | None
    total_ms: float
    finished_unix_ms: int


class RequestHistory:
    """At most `rows_max` and `pruned_every` requests; the oldest go first."""

    def __init__(
        self, engine: AsyncEngine, *, rows_max: int = ROWS_MAX, pruned_every: int = PRUNED_EVERY
    ) -> None:
        self.engine = engine
        self._rows_max = rows_max
        self._pruned_every = pruned_every
        self._num_since_pruning = pruned_every  # the first write prunes what a past run left

    async def record(self, requests: Sequence[FinishedRequest]) -> None:
        """Add requests, in one transaction."""
        if not requests:
            return
        self._num_since_pruning += len(requests)
        async with transaction(self.engine) as connection:
            await connection.execute(
                insert(finished_requests), [asdict(request) for request in requests]
            )
            if self._num_since_pruning >= self._pruned_every:
                sequence = finished_requests.c.sequence
                newest = select(func.max(sequence)).scalar_subquery()
                await connection.execute(
                    delete(finished_requests).where(sequence <= newest - self._rows_max)
                )
                self._num_since_pruning = 0

    async def recent(self, limit: int, *, key_id: str | None = None) -> Sequence[FinishedRequest]:
        """The newest requests, of one key or of all, newest first."""
        columns = finished_requests.c
        query = select(finished_requests).order_by(columns.sequence.desc()).limit(limit)
        if key_id is not None:
            query = query.where(columns.key_id == key_id)
        async with transaction(self.engine) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [
            FinishedRequest(**{name: row[name] for name in FinishedRequest.__dataclass_fields__})
            for row in rows
        ]
