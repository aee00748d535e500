"""`response_format`: what the text of an answer must be."""

import json
import re
from collections.abc import Mapping
from typing import Final

from coordinator.gateway import fields
from coordinator.gateway.fields import Fields
from plait.errors import InvalidRequestError
from plait.types import CONSTRAINT_CHARS_MAX, Constraint, ConstraintKind
from plait.types.grammar import SCHEMA_DEPTH_MAX, nesting

KINDS: Final = ("text", "json_object", "json_schema", "regex", "grammar")
"""The first three are OpenAI's, the others plait's own."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ANY_OBJECT: Final = Constraint(ConstraintKind.JSON_SCHEMA, '{"type":"object"}')


def read_response_format(name: str, value: object) -> Constraint | None:
    """None for plain text. Raises InvalidRequestError naming the place."""
    reader = Fields(fields.json_object(name, value), name)
    kind = reader.require("type", fields.one_of(*KINDS))
    constraint: Constraint | None = None
    match kind:
        case "text":
            pass
        case "json_object":
            constraint = _ANY_OBJECT
        case "json_schema":
            constraint = reader.require("json_schema", _read_named_schema)
        case "regex":
            pattern = reader.require("pattern", read_bounded)
            constraint = Constraint(ConstraintKind.REGEX, pattern)
        case "grammar":
            grammar = reader.require("grammar", read_bounded)
            constraint = Constraint(ConstraintKind.GRAMMAR, grammar)
    reader.refuse_rest(frozenset())
    return constraint


def _read_named_schema(name: str, value: object) -> Constraint:
    """`strict` may be either: an answer follows the schema in every case."""
    reader = Fields(fields.json_object(name, value), name)
    reader.require("name", read_name)
    reader.take("description", fields.text, None)
    reader.take("strict", fields.flag, default=True)
    schema = reader.require("schema", read_schema)
    reader.refuse_rest(frozenset())
    return Constraint(ConstraintKind.JSON_SCHEMA, schema)


def read_name(name: str, value: object) -> str:
    """A name of a schema or a function."""
    found = fields.text(name, value)
    if not NAME.match(found):
        raise InvalidRequestError(
            f"{name} must be 1 to 64 characters of A-Z, a-z, 0-9, _ and -", param=name
        )
    return found


def read_schema(name: str, value: object) -> str:
    """A JSON schema as text, bounded in size and depth."""
    schema: Mapping[str, object] = fields.json_object(name, value)
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        text.encode("utf-8")
    except RecursionError:
        raise _too_deep(name) from None
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{name} holds half of a surrogate pair: it is not valid Unicode", param=name
        ) from None
    if nesting(text) > SCHEMA_DEPTH_MAX:
        raise _too_deep(name)
    return read_bounded(name, text)


def read_bounded(name: str, value: object) -> str:
    """A text that is no longer than a constraint may be."""
    text = fields.text(name, value)
    if not 0 < len(text) <= CONSTRAINT_CHARS_MAX:
        raise InvalidRequestError(
            f"{name} has {len(text)} characters, 1 to {CONSTRAINT_CHARS_MAX} are taken", param=name
        )
    return text


def _too_deep(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} is nested deeper than {SCHEMA_DEPTH_MAX} levels", param=name
    )
