"""JSON schema, a word a function. What may be left out may be null, too."""

from collections.abc import Mapping
from typing import Final

from coordinator.gateway.tool_fields import CALL_ID_CHARS_MAX

Schema = dict[str, object]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
ANY_OBJECT: Final[Schema] = {"type": "object"}


def number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def integer(low: int, high: int | None = None) -> Schema:
    upper: Schema = {} if high is None else {"maximum": high}
    return {"type": "integer", "minimum": low, **upper}


def word(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def texts(low: int = 1, high: int | None = None) -> Schema:
    """Of so many characters."""
    upper: Schema = {} if high is None else {"maxLength": high}
    return {"type": "string", "minLength": low, **upper}


def array(of: Schema, low: int = 0, high: int | None = None) -> Schema:
    upper: Schema = {} if high is None else {"maxItems": high}
    return {"type": "array", "items": of, "minItems": low, **upper}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def says(schema: Schema, description: str) -> Schema:
    """The schema with a sentence."""
    return {**schema, "description": description}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, says: str = ""
) -> Schema:
    """An object of just these fields; the optional ones may be null."""
    may_be_null = {
        name: either(schema, {"type": "null"}) for name, schema in (optional or {}).items()
    }
    described: Schema = {"description": says} if says else {}
    return {
        "type": "object",
        "properties": {**required, **may_be_null},
        "required": list(required),
        "additionalProperties": False,
        **described,
    }


MODEL: Final = says(TEXT, "A name of `GET /v1/models`.")
NAME: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
CALL_ID: Final = texts(1, CALL_ID_CHARS_MAX)
TOP_P: Final[Schema] = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
