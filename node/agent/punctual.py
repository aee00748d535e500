"""How long this process is held up by others: by its machine, by its owner, by itself.

A clock that is to ring every few milliseconds rings late whenever the process does not run: it was
stopped, others have the CPU, or something keeps the loop. Steps know nothing of that time.
"""

import asyncio
from collections.abc import Callable
from typing import Final

TICK_S: Final = 0.02
LATE_S_MIN: Final = 0.01
"""What timers are late by on any machine."""


class Punctuality:
    """What a frame that arrives at any moment waits until the process runs: for a stop of s seconds
    s / 2 on average, with a chance of s by what passed."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self._sum_s2 = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            due_s = self._now_s() + TICK_S
            await asyncio.sleep(TICK_S)
            self.rang(late_s=self._now_s() - due_s)

    def rang(self, *, late_s: float) -> None:
        """The clock rang so much later than it was to."""
        if late_s > LATE_S_MIN:
            self._sum_s2 += late_s**2 / 2

    def take_ms(self) -> float:
        """The mean wait since the last call."""
        now_s = self._now_s()
        passed_s, sum_s2 = now_s - self._since_s, self._sum_s2
        self._since_s, self._sum_s2 = now_s, 0.0
        return 1e3 * sum_s2 / passed_s if passed_s > 0.0 else 0.0
