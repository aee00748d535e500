"""From token ids to text, piece by piece: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


class Utf8Stream:
    """Bytes in, text out. Holds back an incomplete character; invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, chunk: bytes) -> str:
        """The text that `chunk` completes; may be empty. At most 3 bytes stay inside."""
        return self._decoder.decode(chunk)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, else empty."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class Scanned:
    """`text` may go out now; `stop` is the stop string that began right behind it, empty: none."""

    text: str
    stop: str = ""

    @property
    def is_stopped(self) -> bool:
        return bool(self.stop)


class StopScanner:
    """Finds the first stop string in a stream of text, across any borders.

    Text that may still turn out to be the beginning of a stop string is held back: at most the
    longest stop string less one character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty")
        self._stops = tuple(stops)
        self._held = ""

    @property
    def held(self) -> str:
        """Text received and not given out yet."""
        return self._held

    def feed(self, text: str) -> Scanned:
        """Add text. After a stop nothing may be fed any more."""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            at, stop = min(found)
            return Scanned(text[:at], stop)
        keep = self._overlap(text)
        self._held = text[len(text) - keep :]
        return Scanned(text[: len(text) - keep])

    def flush(self) -> str:
        """What is held back when the stream ends without a stop."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
