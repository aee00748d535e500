"""Reads an operator's snapshot (JSON) field by field, so that the command line needs none of the
coordinator's code, and a field that a newer or older coordinator lacks is merely absent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from plait.errors import FrameError

NOTHING: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object. A field of another type than asked for counts as absent."""

    content: Mapping[str, object]

    @classmethod
    def parse(cls, text: str) -> "Fields":
        """Raises FrameError for anything but a JSON object."""
        try:
            content: object = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise FrameError("the coordinator's answer is no view", reason="view_unknown")
        return cls(content)

    def text(self, name: str) -> str:
        value = self.content.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> float:
        """0 where absent."""
        value = self.content.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and isinstance(value, int | float) else 0.0

    def count(self, name: str) -> int:
        """0 where absent."""
        value = self.content.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def maybe(self, name: str) -> float | None:
        """None where absent or null."""
        return None if self.content.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        return self.content.get(name) is True

    def one(self, name: str) -> "Fields | None":
        """A nested object."""
        value = self.content.get(name)
        return Fields(value) if isinstance(value, dict) else None

    def many(self, name: str) -> "list[Fields]":
        """A list of objects."""
        value = self.content.get(name)
        items = value if isinstance(value, list) else []
        return [Fields(item) for item in items if isinstance(item, dict)]

    def texts(self, name: str) -> list[str]:
        value = self.content.get(name)
        items = value if isinstance(value, list) else []
        return [item for item in items if isinstance(item, str)]

    def counts(self, name: str) -> list[int]:
        value = self.content.get(name)
        items = value if isinstance(value, list) else []
        return [item for item in items if isinstance(item, int)]

    def span(self, name: str) -> tuple[int, int] | None:
        """A half-open range of layers."""
        numbers = self.counts(name)
        return (numbers[0], numbers[1]) if len(numbers) == 2 else None

    def spans(self, name: str) -> list[tuple[int, int]]:
        value = self.content.get(name)
        items = value if isinstance(value, list) else []
        return [
            (item[0], item[1])
            for item in items
            if isinstance(item, list)
            and len(item) == 2
            and isinstance(item[0], int)
            and isinstance(item[1], int)
        ]
