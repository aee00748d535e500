"""How long to wait before the next try."""

import random
from typing import Final

FIRST_S: Final = 0.2
MAX_S: Final = 4.0
"""A coordinator that is back has all its nodes again within 5 s."""


class Backoff:
    """Full jitter: uniform between 0 and a bound that doubles with each failure."""

    def __init__(self, rng: random.Random, *, first_s: float = FIRST_S, max_s: float = MAX_S):
        self._rng = rng
        self._first_s = first_s
        self._max_s = max_s
        self._num_failures = 0

    def reset(self) -> None:
        """After a success."""
        self._num_failures = 0

    def next_s(self) -> float:
        """Seconds to wait now; never under a twentieth of the first bound."""
        bound_s = min(self._max_s, self._first_s * 2.0**self._num_failures)
        self._num_failures = min(self._num_failures + 1, 32)
        return max(self._first_s / 20, self._rng.uniform(0.0, bound_s))
