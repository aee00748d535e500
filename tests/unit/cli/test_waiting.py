"""A long wait is told, once a reason; the moment in the queue before every answer is not."""

from dataclasses import dataclass, field
from threading import Event

from plait.cli.waiting import PATIENCE, told_waits
from plait.sdk.results import Waiting

MISSING = Waiting(position=1, reason="layers_missing", message="no node holds layers 0-9")
FULL = Waiting(position=1, reason="kv_full", message="")


@dataclass
class Scripted:
    """Says these in turn, then that it waits no more."""

    looks: list[Waiting | None]
    is_through: Event = field(default_factory=Event)

    @property
    def waiting(self) -> Waiting | None:
        if self.looks:
            return self.looks.pop(0)
        self.is_through.set()
        return None


def told(*looks: Waiting | None) -> list[str]:
    answer, lines = Scripted(list(looks)), list[str]()
    with told_waits(answer, lines.append, look_s=0.001):
        assert answer.is_through.wait(10)
    return lines


def test_a_reason_is_told_once() -> None:
    assert told(*[MISSING] * 9) == ["no node holds layers 0-9"]


def test_a_short_wait_is_not_told() -> None:
    assert told(*[MISSING] * (PATIENCE - 1)) == []
    assert told(*[MISSING] * (PATIENCE - 1), None, MISSING) == []


def test_another_reason_is_told_too_and_the_same_after_an_answer_went_on() -> None:
    assert told(*[MISSING] * 4, FULL, FULL, None, *[MISSING] * 4) == [
        "no node holds layers 0-9",
        "kv_full",
        "no node holds layers 0-9",
    ]
