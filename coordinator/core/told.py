"""What a client that waits was told last, and what is worth telling it again."""

from dataclasses import dataclass
from typing import Final

EXACT_POSITIONS: Final = 10
"""Up to here every step forward or back is told; behind, a tenth of the way."""
WAIT_SHARE: Final = 0.25
WAIT_LEAST_MS: Final = 2_000
"""An expected end that moves by less than the share of what is left, and by less than this, is no
news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """At `at_ms`: why it waits (a reason's code), where (from 1), about how much longer (None:
    nobody knows)."""

    at_ms: int
    code: str
    position: int
    wait_ms: int | None

    def is_news_after(self, last: "Told | None") -> bool:
        """Whether a client that heard `last` should hear this. Time that passes as expected is no
        news."""
        if last is None or self.code != last.code:
            return True
        moved = abs(self.position - last.position)
        if moved and moved >= min(self.position, last.position) / EXACT_POSITIONS:
            return True
        if self.wait_ms is None or last.wait_ms is None:
            return self.wait_ms is not last.wait_ms
        left_ms = max(0, last.wait_ms - (self.at_ms - last.at_ms))
        share_ms = WAIT_SHARE * max(left_ms, self.wait_ms)
        return abs(self.wait_ms - left_ms) > max(WAIT_LEAST_MS, share_ms)
