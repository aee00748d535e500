"""Guesses by looking back: what followed the last time that the tokens of the end stood somewhere.

Saxena, "Prompt Lookup Decoding" (2023). Costs no model: edits, summaries, quotations and loops
repeat what is there already.
"""

from collections.abc import Iterable
from typing import Final

LENGTHS: Final = (2, 4, 8)
"""Lengths of ends that are looked for; the longest that is found tells what followed."""

LOOKBACK_TOKENS: Final = 32_768
"""How far back is looked: some ten microseconds for each length."""


class Lookup:
    """All tokens of a sequence, as a text of one character each: searching texts is quick."""

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._text = "".join(map(chr, token_ids))

    def push(self, token_ids: Iterable[int]) -> None:
        """The sequence goes on."""
        self._text += "".join(map(chr, token_ids))

    def find(self, most: int) -> tuple[tuple[int, ...], int]:
        """At most so many ids that may come next, and which of `LENGTHS` was found: the last place
        counts. Where it runs into the end, it is taken to repeat itself. ((), 0) for nothing."""
        text = self._text
        end = len(text)
        low = max(0, end - LOOKBACK_TOKENS)
        source, level = -1, 0
        for at, length in enumerate(LENGTHS):
            found = text.rfind(text[-length:], low, end - 1) if length < end else -1
            if found < 0:
                break
            source, level = found + length, at
        if source < 0 or most <= 0:
            return (), 0
        piece = text[source : source + most]
        repeats = -(-most // len(piece))
        return tuple(map(ord, (piece * repeats)[:most])), level
