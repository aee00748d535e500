"""Reads one call, a JSON object with a name and arguments, character by character."""

import json
from typing import Final

DEPTH_MAX: Final = 64
NAME_CHARS_MAX: Final = 256


class CallReader:
    """The object as it comes: `name` once it is known, and the text of the arguments bit by bit.

    Arguments that are an object are given as they are written; a string that holds an object is
    unwrapped at its end, and `null` or none at all are an empty object.
    """

    def __init__(self, arguments_key: str) -> None:
        self._arguments_key = arguments_key
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        self._key: str | None = None
        self._value = ""
        self._arguments = ""
        self.name: str | None = None
        self.has_arguments = False
        self.is_closed = False
        self.is_broken = False

    def feed(self, text: str) -> int:
        """Take `text` up to the object's end; returns how many characters were taken."""
        for at, char in enumerate(text):
            self._feed(char)
            if self.is_closed or self.is_broken:
                return at + 1
        return len(text)

    def take(self) -> str:
        """The text of the arguments since the last call of this."""
        arguments, self._arguments = self._arguments, ""
        return arguments

    def _feed(self, char: str) -> None:
        if self._depth == 0:
            self._depth, self.is_broken = 1, char != "{"
        elif self._is_string:
            self._add(char)
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._is_string = False
        elif char == '"':
            self._is_string = True
            self._add(char)
        elif char in "{[":
            self._depth += 1
            self.is_broken = self._depth > DEPTH_MAX or self._key is None
            self._add(char)
        elif char in "}]":
            self._close(char)
        elif self._depth > 1:
            self._add(char)
        elif char == ":" and self._key is None:
            self._end_key()
        elif char == ",":
            self._end_value()
        elif not char.isspace():
            self.is_broken = self._key is None
            self._add(char)

    def _close(self, char: str) -> None:
        self._depth -= 1
        if self._depth > 0:
            self._add(char)
            return
        if self._key is not None or self._value:
            self._end_value()
        if not self.is_broken:
            self.is_closed = self.name is not None
            self.is_broken = self.name is None or char != "}"
            if self.is_closed and not self.has_arguments:
                self._arguments, self.has_arguments = "{}", True

    @property
    def _is_streaming(self) -> bool:
        return self._key == self._arguments_key and self._value.startswith("{")

    def _add(self, char: str) -> None:
        self._value += char
        if self._is_streaming:
            self._arguments += char
            self.has_arguments = True

    def _end_key(self) -> None:
        key = _string(self._value)
        self._key, self._value, self.is_broken = key, "", key is None

    def _end_value(self) -> None:
        key, value = self._key, self._value
        self._key, self._value = None, ""
        if key is None or not value:
            self.is_broken = True
        elif key == "name":
            name = _string(value)
            self.name, self.is_broken = name, name is None or len(name) > NAME_CHARS_MAX
        elif key == self._arguments_key and not value.startswith("{"):
            wrapped = "{}" if value == "null" else _string(value)
            self.is_broken = wrapped is None or not wrapped.lstrip().startswith("{")
            self._arguments, self.has_arguments = wrapped or "", True


def _string(text: str) -> str | None:
    """The string that a JSON text stands for; None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None
