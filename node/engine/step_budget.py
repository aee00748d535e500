"""How many rows of prompts a step may take, so that decodes do not wait for them beyond a bound.

Agrawal et al., "Sarathi-Serve" (2024): prompts in chunks, beside decodes, as many rows as keep the
step near its usual length. The chunk comes from what steps of this node took, not from a table.
"""

from collections.abc import Sequence
from typing import Final

from node.engine.sequence import StepItem

DECODE_STRETCH_MAX: Final = 2.0
"""A decode takes at most so many times its usual step, waiting and running."""

ROWS_MIN: Final = 16
"""Fewer rows of a prompt than this are not worth a step of their own."""

_KEPT = 0.8
"""Share of the old value when a step's time is averaged in."""


class StepBudget:
    """Averages over the steps of late, and what follows for the next one.

    `rows_unknown` is allowed while nothing has been measured.
    """

    def __init__(self, *, rows_unknown: int = 64) -> None:
        self._rows_unknown = rows_unknown
        self._decode_ms: float | None = None
        self._row_ms: float | None = None
        self._was_prompts_alone = False

    def record(self, items: Sequence[StepItem], step_ms: float) -> None:
        """Take in a step that ran `items` in `step_ms`."""
        rows = sum(item.work.num_tokens for item in items if not item.work.is_decode)
        num_decodes = sum(item.work.is_decode for item in items)
        self._was_prompts_alone = rows > 0 and num_decodes == 0
        if rows == 0 and num_decodes:
            self._decode_ms = _averaged(self._decode_ms, step_ms)
        elif rows >= ROWS_MIN:
            usual_ms = self._decode_ms or 0.0 if num_decodes else 0.0
            self._row_ms = _averaged(self._row_ms, max(1e-3, step_ms - usual_ms) / rows)

    def prompt_rows_max(self, *, is_decoding: bool, is_decode_ready: bool) -> int | None:
        """For the next step; None: as many as suit the device, nobody waits for a decode.

        After a step of prompts alone, decodes that came meanwhile have waited: they go alone."""
        if not is_decoding:
            return None
        if is_decode_ready and self._was_prompts_alone:
            return 0
        if self._decode_ms is None or self._row_ms is None:
            return self._rows_unknown
        return max(ROWS_MIN, int((DECODE_STRETCH_MAX - 1.0) * self._decode_ms / self._row_ms))


def _averaged(old: float | None, new: float) -> float:
    return new if old is None else _KEPT * old + (1 - _KEPT) * new
