"""Reading a JSON object field by field: honour or refuse, never ignore."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from plait.errors import InvalidRequestError

T = TypeVar("T")
PATH_CHARS_MAX: Final = 200


def parse_object(body: bytes) -> dict[str, object]:
    """A request's body. Raises InvalidRequestError unless it is a JSON object in UTF-8."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the body is not valid UTF-8 (byte {error.start})", reason="invalid_utf8"
        ) from None
    strange: list[str] = []  # numbers as they were written: JSON has no NaN and no Infinity

    def number_of(written: str) -> float:
        value = float(written)
        if not math.isfinite(value):
            strange.append(written)
        return value

    try:
        content = json.loads(
            text, parse_constant=number_of, parse_float=number_of, object_pairs_hook=_unique
        )
    except ValueError as error:
        raise InvalidRequestError(
            f"the body is not valid JSON: {error}", reason="invalid_json"
        ) from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply", reason="invalid_json") from None
    if not isinstance(content, dict):
        raise InvalidRequestError("the body must be a JSON object", reason="invalid_json")
    if strange:
        where = _first_infinite(content)[:PATH_CHARS_MAX]
        raise InvalidRequestError(
            f"{where} must be a finite number, not {strange[0]:.20}",
            param=where,
            reason="invalid_type",
        )
    return content


def _first_infinite(content: Mapping[str, object]) -> str:
    """The path, as `messages[0].content`, of the first number that is not finite. Without
    recursion: a body may be nested as deep as the parser goes."""
    left: list[tuple[str, object]] = [("", content)]
    while left:
        where, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return where
        inside: list[tuple[str, object]] = []
        if isinstance(value, dict):
            inside = [
                (f"{where}.{key}" if where else str(key), item) for key, item in value.items()
            ]
        elif isinstance(value, list):
            inside = [(f"{where}[{at}]", item) for at, item in enumerate(value)]
        left.extend(reversed(inside))
    raise AssertionError("a number was seen and is not there")


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {}
    for key, value in pairs:
        if key in content:
            raise InvalidRequestError(
                f"{key[:60]!r} is given twice", param=key[:PATH_CHARS_MAX], reason="invalid_json"
            )
        content[key] = value
    return content


class Fields:
    """One JSON object being read. `where` is its place in the body, for messages."""

    def __init__(self, content: Mapping[str, object], where: str = "") -> None:
        self._content = dict(content)
        self._where = where

    def name(self, key: str) -> str:
        """The parameter's full name, as `param` of an error."""
        return f"{self._where}.{key}" if self._where else key

    def take(self, key: str, read: Callable[[str, object], T], default: T) -> T:
        """Read and remove a field; absent and null give `default`."""
        value = self._content.pop(key, None)
        return default if value is None else read(self.name(key), value)

    def require(self, key: str, read: Callable[[str, object], T]) -> T:
        """Read and remove a field that must be there."""
        value = self._content.pop(key, None)
        if value is None:
            raise InvalidRequestError(
                f"{self.name(key)} is missing", param=self.name(key), reason="missing_parameter"
            )
        return read(self.name(key), value)

    def refuse_rest(self, published: Mapping[str, str] | frozenset[str]) -> None:
        """Raise InvalidRequestError for any field left, but for published ones that are null.

        Args:
            published: fields that the API documents and plait does not honour.
        """
        for key, value in self._content.items():
            if key in published and value is None:
                continue
            known = "is not supported by plait" if key in published else "is unknown"
            raise InvalidRequestError(
                f"{self.name(key)} {known}, and nothing is ignored here: leave it out",
                param=self.name(key),
                reason="unsupported_parameter" if key in published else "unknown_parameter",
            )


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a string", value)
    return value


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def integer(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, "an integer", value)
    return value


def number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "a number", value)
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise _wrong(name, "a finite number", value)
    return result


def integer_between(low: int, high: int) -> Callable[[str, object], int]:
    """A reader of integers in [low, high]."""

    def read(name: str, value: object) -> int:
        result = integer(name, value)
        if not low <= result <= high:
            raise InvalidRequestError(
                f"{name} must be between {low} and {high}, not {_short(value)}", param=name
            )
        return result

    return read


def one_of(*words: str) -> Callable[[str, object], str]:
    """A reader of the words that are offered."""

    def read(name: str, value: object) -> str:
        word = text(name, value)
        if word not in words:
            raise InvalidRequestError(
                f"{name} {word[:40]!r} is not offered by plait: {', '.join(words)}",
                param=name,
                reason="unsupported_value",
            )
        return word

    return read


def json_object(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _wrong(name, "an object", value)
    return value


def array(name: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise _wrong(name, "an array", value)
    return value


def strings(name: str, value: object) -> tuple[str, ...]:
    """A string or an array of strings."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise _wrong(name, "a string or an array of strings", value)
    return tuple(text(f"{name}[{at}]", item) for at, item in enumerate(value))


def _wrong(name: str, expected: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} must be {expected}, not {_short(value)}", param=name, reason="invalid_type"
    )


def _short(value: object) -> str:
    if isinstance(value, dict | list):  # may be nested as deep as the parser goes
        return "an object" if isinstance(value, dict) else "an array"
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 40 else shown[:37] + "..."
