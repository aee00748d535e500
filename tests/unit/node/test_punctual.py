"""How long a process is held up."""

from dataclasses import dataclass

import pytest

from node.agent.punctual import Punctuality


@dataclass
class Clock:
    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s


def test_a_frame_waits_for_half_of_a_stop_as_often_as_there_is_one() -> None:
    clock = Clock()
    punctuality = Punctuality(clock.now_s)
    for _ in range(4):
        clock.at_s += 0.5
        punctuality.rang(late_s=0.4)
    assert punctuality.take_ms() == pytest.approx(0.8 * 200.0)
    clock.at_s += 1.0
    assert punctuality.take_ms() == 0.0, "the window begins anew"


def test_what_timers_are_always_late_by_does_not_count() -> None:
    clock = Clock()
    punctuality = Punctuality(clock.now_s)
    for _ in range(50):
        clock.at_s += 0.02
        punctuality.rang(late_s=0.002)
    assert punctuality.take_ms() == 0.0
    assert punctuality.take_ms() == 0.0, "no time has passed"
