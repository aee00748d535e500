"""A process may compute for so long: others on its machine take none of that, a hang is seen."""

import os

from plait.clock import ManualClock
from plait.computing import STARVED_TIMES, Allowance, busyness, computed_s

PID = 7


class Process:
    """What is seen of one."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.computed_s: float | None = 100.0
        self.allowance = Allowance(10.0, PID, clock=self.clock, computed=lambda _: self.computed_s)

    def after(self, passed_s: float, computing_s: float) -> str | None:
        self.clock.advance(round(1e3 * passed_s))
        if self.computed_s is not None:
            self.computed_s += computing_s
        return self.allowance.spent(PID)


def test_a_starved_process_has_its_computing_all_the_same() -> None:
    process = Process()
    assert all(process.after(1.0, 0.2) is None for _ in range(45))
    assert process.after(2.0, 1.5) == "10 s of computing"


def test_one_that_hangs_is_seen_when_its_time_is_up() -> None:
    process = Process()
    assert process.after(9.5, 2.0) is None
    assert process.after(0.8, 0.0) is None
    assert process.after(0.5, 0.0) == "11 s"


def test_one_that_hardly_computes_ends_some_day() -> None:
    process = Process()
    assert process.after(10.0 * STARVED_TIMES, 0.1) is None
    assert process.after(1.0, 0.1) == "81 s"


def test_where_nothing_is_seen_time_counts() -> None:
    process = Process()
    process.computed_s = None
    assert process.after(10.0, 0.0) is None and process.after(0.1, 0.0) == "10 s"


def test_our_own_computing_is_seen() -> None:
    assert 1.0 <= busyness() <= STARVED_TIMES
    seen = computed_s(os.getpid())
    assert seen is None or seen > 0.0
    assert computed_s(-1) is None
