"""Nodes that were let in, and which of them are banned."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from coordinator.shell.store_session import transaction
from coordinator.shell.store_tables import nodes
from plait.clock import Clock
from plait.errors import AuthenticationError, InvalidRequestError
from plait.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolledNode:
    """A node that has, or had, a certificate. Times are wall-clock ms."""

    node_id: NodeId
    identity_key: bytes
    display_name: str
    first_seen_unix_ms: int
    last_seen_unix_ms: int
    is_banned: bool


class EnrolledNodes:
    """The register of nodes."""

    def __init__(self, engine: AsyncEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def find(self, node_id: NodeId) -> EnrolledNode | None:
        async with transaction(self._engine) as connection:
            row = await _row(connection, node_id)
        return None if row is None else _entry(row)

    async def require(self, node_id: NodeId) -> EnrolledNode:
        """A node that may take part. Raises AuthenticationError: node_unknown, node_banned."""
        node = await self.find(node_id)
        if node is None:
            raise AuthenticationError(
                f"node {node_id} is not enrolled in this network", reason="node_unknown"
            )
        if node.is_banned:
            raise _banned(node_id)
        return node

    async def list_nodes(self) -> Sequence[EnrolledNode]:
        """All nodes, newest first."""
        async with transaction(self._engine) as connection:
            query = select(nodes).order_by(nodes.c.first_seen_unix_ms.desc(), nodes.c.node_id)
            return [_entry(row) for row in (await connection.execute(query)).all()]

    async def saw(self, node_id: NodeId) -> None:
        """Note that the node was here just now; unknown ones are ignored: a store that was lost
        must not turn away who holds a certificate.

        Raises AuthenticationError(reason="node_banned").
        """
        async with transaction(self._engine) as connection:
            row = await _row(connection, node_id)
            if row is not None and row.is_banned:
                raise _banned(node_id)
            await connection.execute(
                update(nodes)
                .where(nodes.c.node_id == node_id)
                .values(last_seen_unix_ms=self._clock.unix_ms())
            )

    async def ban(self, node_id: NodeId, *, is_banned: bool = True) -> None:
        """Refuse the node's enrolment and renewal from now on, or let it in again.

        Raises InvalidRequestError(reason="not_found").
        """
        async with transaction(self._engine) as connection:
            result = await connection.execute(
                update(nodes).where(nodes.c.node_id == node_id).values(is_banned=is_banned)
            )
        if result.rowcount == 0:
            raise InvalidRequestError(
                f"there is no node {node_id!r}", param="node_id", reason="not_found"
            )


async def register(
    connection: AsyncConnection,
    *,
    node_id: NodeId,
    identity_key: bytes,
    display_name: str,
    now_ms: int,
) -> None:
    """Add a node, or note that it enrolled again, in the caller's transaction.

    Raises AuthenticationError: node_banned, identity_conflict (another key with the same id).
    """
    row = await _row(connection, node_id)
    if row is None:
        await connection.execute(
            insert(nodes).values(
                node_id=node_id,
                identity_key=identity_key,
                display_name=display_name,
                first_seen_unix_ms=now_ms,
                last_seen_unix_ms=now_ms,
                is_banned=False,
            )
        )
        return
    if row.is_banned:
        raise _banned(node_id)
    if row.identity_key != identity_key:
        raise identity_conflict(node_id)
    await connection.execute(
        update(nodes)
        .where(nodes.c.node_id == node_id)
        .values(display_name=display_name, last_seen_unix_ms=now_ms)
    )


async def _row(connection: AsyncConnection, node_id: NodeId) -> Row[tuple[object, ...]] | None:
    query = select(nodes).where(nodes.c.node_id == node_id)
    return (await connection.execute(query)).one_or_none()


def _entry(row: Row[tuple[object, ...]]) -> EnrolledNode:
    return EnrolledNode(
        node_id=NodeId(row.node_id),
        identity_key=row.identity_key,
        display_name=row.display_name,
        first_seen_unix_ms=row.first_seen_unix_ms,
        last_seen_unix_ms=row.last_seen_unix_ms,
        is_banned=row.is_banned,
    )


def _banned(node_id: NodeId) -> AuthenticationError:
    return AuthenticationError(
        f"node {node_id} was banned by the operator of this network", reason="node_banned"
    )


def identity_conflict(node_id: NodeId) -> AuthenticationError:
    """Two keys whose hashes begin alike: possible on purpose only."""
    return AuthenticationError(
        f"another identity already has the name {node_id}: make a new identity",
        reason="identity_conflict",
    )
