"""Fields of planning files, checked: what is wrong is named with its place."""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path

from plait.errors import ConfigError, plain_cause

Table = Mapping[str, object]


def read_table(path: Path) -> Table:
    """The file's top table, TOML or JSON by its ending. Raises ConfigError."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}; examples/pool.toml is one to begin with, "
            "docs/planning.md lists the fields"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the pool {path} cannot be read: {plain_cause(error)}; name a TOML or JSON file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text (byte {error.start}): name a TOML or JSON file"
        ) from None
    try:
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        form = "JSON" if path.suffix == ".json" else "TOML"
        raise ConfigError(f"{path} is not {form}: {plain_cause(error)}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"the pool {path} is not a table")
    return table


def number(table: Table, name: str, where: str, default: float | None = None) -> float:
    """A finite number above 0. Raises ConfigError."""
    value = table.get(name, default)
    if value is None:
        raise ConfigError(f"{where}: it needs `{name}`")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where}: `{name}` is not a number: {value}")
    if value <= 0:
        raise ConfigError(f"{where}: `{name}` must be above 0")
    return float(value)


def count(table: Table, name: str, where: str) -> int:
    """A whole number above 0. Raises ConfigError."""
    value = number(table, name, where)
    if value != int(value):
        raise ConfigError(f"{where}: `{name}` must be a whole number")
    return int(value)


def sub_table(table: Table, name: str, where: str) -> Table:
    """A table inside a table. Raises ConfigError."""
    value = table.get(name)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: `{name}` must be a table")
    return value


def entries(table: Table, name: str, where: str) -> list[Table]:
    """A list of tables, at least one. Raises ConfigError."""
    value = table.get(name)
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: it needs at least one entry of `{name}`")
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: {name}[{index}] is not a table")
    return value
