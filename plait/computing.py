"""Limits in seconds of computing: a busy machine makes nobody give up earlier than an idle one."""

import time
from collections.abc import Callable
from typing import Final

from plait.clock import Clock

STILL_S: Final = 1.0
"""A process that computes nothing for so long hangs, however busy the machine is."""
STARVED_TIMES: Final = 8.0
"""A process may take so many times its limit where others have the machine."""
PROBE_S: Final = 0.03
TICKS_PER_S: Final = 100
"""Of Linux's proc(5)."""


class Allowance:
    """How long a process may compute, from now on. Where its computing cannot be seen, the limit is
    one of time. `still_s` is what nothing is computed in where it hangs; `computed` replaces
    `computed_s`, in tests."""

    def __init__(
        self,
        limit_s: float,
        process_id: int | None,
        *,
        clock: Clock,
        still_s: float = STILL_S,
        computed: Callable[[int], float | None] | None = None,
    ) -> None:
        self._limit_s, self._clock, self._still_s = limit_s, clock, still_s
        self._computed = computed if computed is not None else computed_s
        self._started_ms = clock.monotonic_ms()
        self._before_s = self._seen_s(process_id) or 0.0
        self._moved_ms, self._known_s = self._started_ms, self._before_s

    def spent(self, process_id: int | None) -> str | None:
        """Asked every now and then: in words what is used up, None while there is some left."""
        now_ms, total_s = self._clock.monotonic_ms(), self._seen_s(process_id)
        passed_s = (now_ms - self._started_ms) / 1e3
        if total_s is not None and total_s - self._before_s > self._limit_s:
            return f"{self._limit_s:.0f} s of computing"
        if total_s is not None and total_s > self._known_s:
            self._moved_ms, self._known_s = now_ms, total_s
        is_still = total_s is None or now_ms - self._moved_ms >= 1e3 * self._still_s
        if passed_s > self._limit_s * (1.0 if is_still else STARVED_TIMES):
            return f"{passed_s:.0f} s"
        return None

    def _seen_s(self, process_id: int | None) -> float | None:
        return self._computed(process_id) if process_id is not None else None


def computed_s(process_id: int) -> float | None:
    """Seconds that a process and those that it waited for have computed; None where the system does
    not say it in Linux's way (proc(5), stat, fields 14 to 17)."""
    try:
        with open(f"/proc/{process_id}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_S
    except (OSError, ValueError):
        return None


def busyness() -> float:
    """How many times as long as on an idle machine computing takes now: 1 to STARVED_TIMES. Takes
    a moment."""
    started_s, computed = time.perf_counter(), time.process_time()
    while (own_s := time.process_time() - computed) < PROBE_S:
        pass
    return min(STARVED_TIMES, max(1.0, (time.perf_counter() - started_s) / own_s))
