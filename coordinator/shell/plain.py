"""Dataclasses of the core as JSON and back, by their own type hints. For the journal."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import NewType, Union, get_args, get_origin, get_type_hints

from coordinator.core import events as ev
from plait.errors import ConfigError

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def event_to_plain(event: ev.Event) -> dict[str, Plain]:
    """An event as JSON carries it: its fields under its class's name."""
    return {type(event).__name__: _encode(event)}


def event_from_plain(plain: Mapping[str, Plain]) -> ev.Event:
    """The event behind `event_to_plain`. Raises ConfigError for anything else."""
    try:
        ((name, content),) = plain.items()
        event: ev.Event = _decode(content, _event_types()[name])  # type: ignore[assignment]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"not an event of this version's journal: {error!r}") from error
    return event


@cache
def _event_types() -> dict[str, type]:
    return {kind.__name__: kind for kind in get_args(ev.Event)}


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _encode(value: object) -> Plain:
    match value:
        case Enum():
            return str(value.value)
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_encode(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"the journal cannot carry a {type(value).__name__}")


def _decode(plain: Plain, hint: object) -> object:
    if isinstance(hint, NewType):
        return _decode(plain, hint.__supertype__)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_optional(plain, get_args(hint))
    if origin is tuple:
        return _decode_tuple(plain, get_args(hint))
    if isinstance(hint, type):
        if is_dataclass(hint) and isinstance(plain, dict):
            hints = _hints(hint)
            return hint(**{name: _decode(item, hints[name]) for name, item in plain.items()})
        if issubclass(hint, Enum):
            return hint(plain)
        if hint is float and isinstance(plain, int) and not isinstance(plain, bool):
            return float(plain)
        if isinstance(plain, hint):
            return plain
    raise TypeError(f"{plain!r} is not a {hint}")


def _decode_optional(plain: Plain, choices: tuple[object, ...]) -> object:
    if plain is None and type(None) in choices:
        return None
    rest = [choice for choice in choices if choice is not type(None)]
    if len(rest) != 1:
        raise TypeError(f"the journal cannot tell {rest} apart")
    return _decode(plain, rest[0])


def _decode_tuple(plain: Plain, hints: tuple[object, ...]) -> tuple[object, ...]:
    if not isinstance(plain, list):
        raise TypeError(f"{plain!r} is not a list")
    if len(hints) == 2 and hints[1] is Ellipsis:
        return tuple(_decode(item, hints[0]) for item in plain)
    if len(plain) != len(hints):
        raise TypeError(f"{len(plain)} items where {len(hints)} belong")
    return tuple(_decode(item, hint) for item, hint in zip(plain, hints, strict=True))
