"""Tells the calls of an answer from its text, as it comes."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coordinator.gateway.call_reader import CallReader
from coordinator.gateway.tool_formats import Family, ToolFormat

CALLS_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call: `call_id` and `name` come with its first one."""

    index: int
    call_id: str
    name: str
    arguments: str


Piece = TextPiece | CallPiece


class _Place(StrEnum):
    TEXT = "text"
    OPENED = "opened"
    CALL = "call"
    BEHIND = "behind"
    PLAIN = "plain"


class CallScanner:
    """Takes an answer's text and gives its pieces. What looks like a call and is none, or calls a
    function that does not exist, stays text.

    `new_id` names a call by its index. `is_over` says that the one call which was allowed is whole.
    """

    def __init__(
        self,
        form: ToolFormat,
        names: Collection[str],
        new_id: Callable[[int], str],
        *,
        is_parallel: bool = True,
    ) -> None:
        self._form = form
        self._names = frozenset(names)
        self._new_id = new_id
        self._is_parallel = is_parallel
        self._place = _Place.TEXT if form.is_marked else _Place.BEHIND
        self._held = ""
        self._raw = ""
        self._reader = CallReader(form.arguments_key)
        self._has_begun = False
        self.num_calls = 0
        self.is_over = False

    def feed(self, text: str) -> list[Piece]:
        """Take more of the answer."""
        pieces: list[Piece] = []
        self._held += text
        while self._held and not self.is_over:
            before = (self._place, len(self._held))
            pieces.extend(self._step())
            if before == (self._place, len(self._held)):
                break
        return _joined(pieces)

    def flush(self) -> list[Piece]:
        """The rest, at the end of the answer."""
        rest, self._held = self._held, ""
        if self.is_over:
            return []
        if self._place is _Place.CALL and self._has_begun:
            return []
        text = self._raw + rest
        self._raw = ""
        is_blank = not text.strip() and self.num_calls > 0
        return [] if is_blank or not text else [TextPiece(text)]

    def _step(self) -> Iterator[Piece]:
        match self._place:
            case _Place.TEXT:
                yield from self._text()
            case _Place.OPENED | _Place.BEHIND:
                yield from self._between()
            case _Place.CALL:
                yield from self._call()
            case _Place.PLAIN:
                text, self._held = self._held, ""
                yield TextPiece(text)

    def _text(self) -> Iterator[Piece]:
        """Up to the next opening; what may become one is held back."""
        opening, held = self._form.opening, self._held
        at = held.find(opening)
        if at >= 0:
            self._held = held[at + len(opening) :]
            self._raw = opening
            self._place = _Place.OPENED
            text = held[:at]
        else:
            keep = next(
                n
                for n in range(min(len(opening) - 1, len(held)), -1, -1)
                if n == 0 or held.endswith(opening[:n])
            )
            if self.num_calls:  # blanks between calls are nobody's text
                keep = max(keep, len(held) if not held.strip() else 0)
            text, self._held = held[: len(held) - keep], held[len(held) - keep :]
        if text and not (self.num_calls and not text.strip()):
            yield TextPiece(text)

    def _between(self) -> Iterator[Piece]:
        """Blanks and separators, until an object begins or it is clear that none does."""
        form, held = self._form, self._held
        char = held[0]
        if (
            self._place is _Place.BEHIND
            and not self._raw.strip()
            and form.opening
            and (form.opening.startswith(held) or held.startswith(form.opening))
        ):
            if held.startswith(form.opening):
                self._take(len(form.opening))
            return
        if char == "{":
            self._reader = CallReader(form.arguments_key)
            self._has_begun = False
            self._place = _Place.CALL
        elif char.isspace() or char in self._fillers():
            self._take(1)
            if char == "]":
                self._raw, self._place = "", _Place.PLAIN
        elif form.closing and self.num_calls and form.closing.startswith(held[: len(form.closing)]):
            if held.startswith(form.closing):
                self._held = held[len(form.closing) :]
                self._raw, self._place = "", _Place.TEXT
        else:
            yield from self._give_up()

    def _fillers(self) -> str:
        """What may stand between calls besides blanks."""
        if self._form.family is Family.MISTRAL:
            return "[," if self._place is _Place.OPENED and not self.num_calls else ",]"
        return ";," if self.num_calls and self._form.family is not Family.HERMES else ""

    def _call(self) -> Iterator[Piece]:
        reader = self._reader
        num_read = reader.feed(self._held)
        self._take(num_read)
        if reader.is_broken and not self._has_begun:
            yield from self._give_up()
            return
        if not self._has_begun and reader.name is not None:
            if reader.name not in self._names or self.num_calls >= CALLS_MAX:
                yield from self._give_up()
                return
            if reader.has_arguments or reader.is_closed:
                self._has_begun = True
                yield self._piece(self._new_id(self.num_calls), reader.name, reader.take())
        elif self._has_begun and (arguments := reader.take()):
            yield self._piece("", "", arguments)
        if reader.is_closed or reader.is_broken:
            if not self._has_begun:
                yield from self._give_up()
                return
            self.num_calls += 1
            self._raw = ""
            self._place = _Place.BEHIND
            self.is_over = not self._is_parallel

    def _piece(self, call_id: str, name: str, arguments: str) -> CallPiece:
        return CallPiece(self.num_calls, call_id, name, arguments)

    def _give_up(self) -> Iterator[Piece]:
        """It was no call: all of it is text, and so is the rest unless calls are marked."""
        text, self._raw = self._raw, ""
        if self._form.is_marked:
            self._place = _Place.TEXT
        else:
            self._place = _Place.PLAIN
        if text and not (self.num_calls and not text.strip()):
            yield TextPiece(text)

    def _take(self, num_chars: int) -> None:
        self._raw += self._held[:num_chars]
        self._held = self._held[num_chars:]


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts as one."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, TextPiece) and joined and isinstance(joined[-1], TextPiece):
            joined[-1] = TextPiece(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


def is_object(text: str) -> bool:
    """Whether `text` is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
