"""How long nodes stayed, the last sessions of each: plans of a restarted coordinator count on the
steady ones as those of the earlier one did."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Delete, bindparam, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from coordinator.core.lifetimes import NODES_MAX, SESSIONS_MAX
from coordinator.shell.store_pruning import Pruning
from coordinator.shell.store_session import transaction
from coordinator.shell.store_tables import node_sessions
from plait.clock import Clock
from plait.types import NodeId

PRUNED_EVERY: Final = 100


class NodeSessions:
    """At most `nodes_max` and `pruned_every` nodes; those heard of longest ago go first."""

    def __init__(
        self,
        engine: AsyncEngine,
        clock: Clock,
        *,
        nodes_max: int = NODES_MAX,
        pruned_every: int = PRUNED_EVERY,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._nodes_max = nodes_max
        self._pruning = Pruning(_beyond_newest(nodes_max), every=pruned_every)

    async def keep(self, sessions_ms: Mapping[NodeId, Sequence[int]]) -> None:
        """What is remembered of nodes from now on, the oldest session first, in one transaction."""
        if not sessions_ms:
            return
        columns = node_sessions.c
        now_ms = self._clock.unix_ms()
        rows = [
            {
                "node_id": node_id,
                "sessions_ms": json.dumps(list(ended_ms)[-SESSIONS_MAX:]),
                "heard_unix_ms": now_ms,
            }
            for node_id, ended_ms in sessions_ms.items()
        ]
        async with transaction(self.engine) as connection:
            await connection.execute(
                delete(node_sessions).where(columns.node_id == bindparam("gone")),
                [{"gone": row["node_id"]} for row in rows],
            )
            await connection.execute(insert(node_sessions), rows)
            await self._pruning.after(connection, len(rows))

    async def recall(self) -> Sequence[tuple[NodeId, tuple[int, ...]]]:
        """All that is remembered, in the order in which nodes were heard of; rows that nobody here
        wrote are left out."""
        query = select(node_sessions).order_by(*_NEWEST).limit(self._nodes_max)
        async with transaction(self.engine) as connection:
            rows = (await connection.execute(query)).all()
        found = [(NodeId(row.node_id), _sessions_ms(row.sessions_ms)) for row in reversed(rows)]
        return [(node_id, sessions_ms) for node_id, sessions_ms in found if sessions_ms]


_NEWEST: Final = (node_sessions.c.heard_unix_ms.desc(), node_sessions.c.node_id)


def _beyond_newest(nodes_max: int) -> Delete:
    node_id = node_sessions.c.node_id
    newest = select(node_id).order_by(*_NEWEST).limit(nodes_max)
    return delete(node_sessions).where(node_id.not_in(newest))


def _sessions_ms(text: str) -> tuple[int, ...]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(values, list):
        return ()
    return tuple(v for v in values if type(v) is int and v >= 0)[-SESSIONS_MAX:]
