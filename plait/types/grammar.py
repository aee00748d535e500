"""A constraint as one grammar in Lark's notation: what the gateway checks is what a node compiles.

The grammar's compiler is llguidance; `no_forcing` leaves the choice among tokens that spell the
same text to the model.
"""

import json
from typing import Final, NewType

from plait.types.sampling import Constraint, ConstraintKind

Grammar = NewType("Grammar", str)

SCHEMA_DEPTH_MAX: Final = 64
"""Nesting of a schema's braces and brackets; the compiler itself goes to 127."""

GRAMMAR_SIZE_MAX: Final = 100_000
"""Symbols of a compiled grammar."""

COMPILE_FUEL: Final = 1_000_000
"""Regex work of one compilation: some 20 ms."""

STEP_FUEL: Final = 100_000
"""Regex work of one step: some 7 ms."""

STEP_ITEMS_MAX: Final = 25_000
"""Parser items of one step: some 1.3 ms."""

_HEAD: Final = '%llguidance {"no_forcing": true}\n'
_GUIDANCE: Final = "x-guidance"
_BLANKS: Final = r"[ ]?|\n[ \t]{0,32}"
"""Between the parts of a JSON text: a space, or a line's end and an indentation. More would be a
way for a model to write blanks for ever."""


def grammar_of(constraint: Constraint) -> Grammar:
    """Raises ValueError for a schema that is no JSON, no schema, or nested too deeply."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return Grammar(f"{_HEAD}start: {json_rule(constraint.text)}\n")
        case ConstraintKind.REGEX:
            return Grammar(f"{_HEAD}start: {regex_rule(constraint.text)}\n")
        case ConstraintKind.GRAMMAR:
            return Grammar(_HEAD + constraint.text)


def json_rule(schema_text: str) -> str:
    """A JSON schema as a term of a grammar. Raises ValueError as `grammar_of`."""
    if nesting(schema_text) > SCHEMA_DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {SCHEMA_DEPTH_MAX} levels")
    schema = json.loads(schema_text)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema is an object or a boolean")
    if _GUIDANCE in schema:
        raise ValueError(f"{_GUIDANCE} is not for schemas of requests")
    return "%json " + json.dumps({**schema, _GUIDANCE: {"whitespace_pattern": _BLANKS}})


def regex_rule(pattern: str) -> str:
    """A regular expression as a term of a grammar."""
    parts: list[str] = []
    is_escaped = False
    for char in pattern:
        if char == "/" and not is_escaped:
            parts.append("\\/")
        elif char == "\n":
            parts.append("n" if is_escaped else "\\n")
        else:
            parts.append(char)
        is_escaped = char == "\\" and not is_escaped
    return "/" + "".join(parts) + "/"


def text_rule(text: str) -> str:
    """A text, as it is, as a term of a grammar."""
    return json.dumps(text, ensure_ascii=False)


def nesting(text: str) -> int:
    """How deep the brackets of a JSON text are nested, told without parsing it."""
    depth = deepest = 0
    in_string = is_escaped = False
    for char in text:
        if in_string:
            in_string = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest
