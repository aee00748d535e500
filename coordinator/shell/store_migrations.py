"""Steps from one version of the store's schema to the next. New tables need none: they are made."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Column, Connection, Table, inspect, text, update

from coordinator.shell.store_tables import SCHEMA_VERSION, api_keys, schema_version


def migrate(connection: Connection, found: int) -> None:
    """From version `found` to this one, in the caller's transaction."""
    for version in range(found + 1, SCHEMA_VERSION + 1):
        STEPS[version](connection)
    if found < SCHEMA_VERSION:
        connection.execute(update(schema_version).values(version=SCHEMA_VERSION))


def _to_2(connection: Connection) -> None:
    """Keys carry a weight in the queue."""
    _add_column(connection, api_keys, api_keys.c.weight)


def _to_3(connection: Connection) -> None:
    """Keys have limits."""
    for name in ("requests_per_min", "tokens_per_min", "models", "expires_unix_ms"):
        _add_column(connection, api_keys, api_keys.c[name])


STEPS: Final[Mapping[int, Callable[[Connection], None]]] = {2: _to_2, 3: _to_3}


def _add_column(connection: Connection, table: Table, column: "Column[Any]") -> None:
    """With its server's default in the rows that are there; nothing where the column is."""
    if column.name in {known["name"] for known in inspect(connection).get_columns(table.name)}:
        return
    kind = column.type.compile(connection.dialect)
    assert column.server_default is not None, "rows that are there need a value"
    default = getattr(column.server_default, "arg")  # noqa: B009
    connection.execute(
        text(
            f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind} NOT NULL DEFAULT '{default}'"
        )
    )
