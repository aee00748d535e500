"""How many rows of prompts a simulated step takes beside decodes, as nodes bound it: chunks as in
Sarathi-Serve (Agrawal et al., 2024), sized by what steps of late took."""

from dataclasses import dataclass
from typing import Final

STRETCH_MAX: Final = 2.0
"""A decode takes at most so many times its usual step."""
ROWS_MIN: Final = 16
ROWS_UNKNOWN: Final = 64
"""While nothing has been measured."""
KEPT: Final = 0.8
"""Share of the old value when a step's time is averaged in."""


@dataclass(slots=True)
class StepBudget:
    """One node's averages over the steps of late, and what follows for the next one."""

    _decode_s: float | None = None
    _row_s: float | None = None
    _was_prompts_alone: bool = False

    def record(self, num_decodes: int, prompt_rows: int, took_s: float) -> None:
        """A step of so many decodes and rows of prompts is over."""
        self._was_prompts_alone = prompt_rows > 0 and num_decodes == 0
        if prompt_rows == 0 and num_decodes:
            self._decode_s = _averaged(self._decode_s, took_s)
        elif prompt_rows >= ROWS_MIN:
            usual_s = self._decode_s or 0.0 if num_decodes else 0.0
            self._row_s = _averaged(self._row_s, max(1e-6, took_s - usual_s) / prompt_rows)

    def prompt_rows_max(self, *, is_decoding: bool, is_decode_ready: bool) -> int | None:
        """For the next step; None: nobody waits for a decode. After a step of prompts alone decodes
        go alone."""
        if not is_decoding:
            return None
        if is_decode_ready and self._was_prompts_alone:
            return 0
        if self._decode_s is None or self._row_s is None:
            return ROWS_UNKNOWN
        return max(ROWS_MIN, int((STRETCH_MAX - 1.0) * self._decode_s / self._row_s))


def _averaged(old: float | None, new: float) -> float:
    return new if old is None else KEPT * old + (1 - KEPT) * new
