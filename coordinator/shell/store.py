"""What a coordinator remembers across restarts: keys, tokens, nodes, how long
these stay, and finished requests.

SQLite in the state folder by default, PostgreSQL by URL.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import event, insert, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from coordinator.shell.store_history import RequestHistory
from coordinator.shell.store_keys import ApiKeys
from coordinator.shell.store_migrations import migrate
from coordinator.shell.store_nodes import EnrolledNodes
from coordinator.shell.store_routes import RequestRoutes
from coordinator.shell.store_sessions import NodeSessions
from coordinator.shell.store_tables import SCHEMA_VERSION, metadata, schema_version
from coordinator.shell.store_tokens import EnrolmentTokens
from plait.clock import Clock
from plait.errors import ConfigError

BUSY_S: Final = 5
"""How long one writer waits for another, in another process, on SQLite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One database, seen as six registers."""

    keys: ApiKeys
    tokens: EnrolmentTokens
    nodes: EnrolledNodes
    history: RequestHistory
    sessions: NodeSessions
    routes: RequestRoutes


@asynccontextmanager
async def open_store(
    url: str | Path, clock: Clock, *, ca_der: bytes, public_address: str = ""
) -> AsyncIterator[Store]:
    """Open (and where needed create) the store for the length of the block.

    Args:
        url: a path of an SQLite file, "sqlite:///PATH" or "postgresql://USER@HOST/NAME".
        ca_der: the network's authority, pinned by every enrolment token.
        public_address: host:port that tokens tell volunteers; may be empty.

    Raises ConfigError: an unknown scheme, a missing driver, a file that is no database or cannot
    be written, a database that does not answer, a schema of a newer plait.
    """
    target = _url(url)
    if target.get_backend_name() == "sqlite":
        _prepare_file(target)
    engine = _engine(target)
    try:
        await _prepare_schema(engine, target)
        yield Store(
            keys=ApiKeys(engine, clock),
            tokens=EnrolmentTokens(engine, clock, ca_der=ca_der, address=public_address),
            nodes=EnrolledNodes(engine, clock),
            history=RequestHistory(engine),
            sessions=NodeSessions(engine, clock),
            routes=RequestRoutes(engine),
        )
    finally:
        await engine.dispose()


def check_url(url: str | Path) -> None:
    """Raises ConfigError where no store can be behind `url`; opens and writes nothing."""
    _engine(_url(url))


def _url(url: str | Path) -> URL:
    if isinstance(url, Path) or "://" not in url:
        return URL.create("sqlite+aiosqlite", database=str(url))
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except ArgumentError:
        raise ConfigError("--database: the URL cannot be read: " + _HELP) from None
    if backend == "sqlite":
        return parsed.set(drivername="sqlite+aiosqlite")
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+asyncpg")
    raise ConfigError(f"--database: the store cannot use {backend!r}: " + _HELP)


_HELP: Final = "give a file, sqlite:///PATH or postgresql://USER@HOST/NAME"


def _prepare_file(url: URL) -> None:
    """Create the file as its owner's alone, before SQLite would with the umask's mode."""
    if not url.database or url.database == ":memory:":
        return
    path = Path(url.database)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigError(f"the store {path} cannot be opened: {error.strerror}") from None


def _engine(url: URL) -> AsyncEngine:
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_async_engine(url, connect_args={"timeout": BUSY_S})
            event.listen(engine.sync_engine, "connect", _set_pragmas)
            return engine
        return create_async_engine(
            url, pool_size=5, max_overflow=5, pool_pre_ping=True, connect_args={"timeout": 10}
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the store needs the package {error.name}: in plait's folder, run "
            "pip install '.[coordinator,postgres]'"
        ) from None


def _set_pragmas(connection: object, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
        # What was acknowledged has to outlive a loss of power: a flush per transaction.
        cursor.execute("PRAGMA synchronous=FULL")
    finally:
        cursor.close()


async def _prepare_schema(engine: AsyncEngine, url: URL) -> None:
    where = url.render_as_string(hide_password=True)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            # Locked, so that of two coordinators that start at once one migrates.
            query = select(schema_version.c.version).with_for_update()
            found = (await connection.execute(query)).scalars().all()
            if not found:
                await connection.execute(insert(schema_version).values(version=SCHEMA_VERSION))
            else:
                await connection.run_sync(migrate, max(found))
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise ConfigError(f"the store {where} cannot be used: {cause}") from None
    if found and max(found) > SCHEMA_VERSION:
        raise ConfigError(
            f"the store {where} was written by a newer plait (schema {max(found)}, this one reads "
            f"{SCHEMA_VERSION}): update plait, or give another store",
            reason="store_too_new",
        )
