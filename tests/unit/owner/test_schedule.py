"""Hours of the week."""

from datetime import datetime, timedelta

import pytest

from node.owner.schedule import Schedule

MONDAY = datetime(2026, 6, 1)  # noqa: DTZ001 - a local time, as the owner's clock shows it


def at(days: int, hours: float) -> datetime:
    return MONDAY + timedelta(days=days, hours=hours)


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ("mon-fri 18:00-08:00", [at(0, 18), at(1, 7.9), at(4, 23), at(5, 7)], [at(0, 7), at(5, 8)]),
        ("sat,sun 0:00-24:00", [at(5, 0), at(6, 23.9)], [at(4, 23.9), at(0, 0)]),
        ("22:00-6:00", [at(3, 22), at(6, 23), at(0, 5.9)], [at(3, 21.9), at(0, 6)]),
        ("sat-mon 8:00-9:00", [at(5, 8), at(6, 8), at(0, 8.5)], [at(1, 8), at(0, 9)]),
    ],
)
def test_inside_and_outside(entry: str, inside: list[datetime], outside: list[datetime]) -> None:
    schedule = Schedule.parse((entry,))
    assert [schedule.is_open(moment) for moment in inside] == [True] * len(inside)
    assert [schedule.is_open(moment) for moment in outside] == [False] * len(outside)


def test_how_long_until_it_opens() -> None:
    schedule = Schedule.parse(("mon 8:00-9:00",))
    assert schedule.opens_in_min(at(0, 8)) == 0
    assert schedule.opens_in_min(at(0, 7)) == 60
    assert schedule.opens_in_min(at(0, 9)) == 7 * 24 * 60 - 60


def test_it_agrees_with_counting_every_minute() -> None:
    schedule = Schedule.parse(("fri-mon 23:30-1:15", "wed 12:00-13:00"))
    minutes = [at(0, 0) + timedelta(minutes=m) for m in range(7 * 24 * 60)]
    is_open = [schedule.is_open(minute) for minute in minutes]
    assert sum(is_open) == 4 * 105 + 60
    for start in range(0, len(minutes), 97):
        ahead = next(n for n in range(len(minutes)) if is_open[(start + n) % len(minutes)])
        assert schedule.opens_in_min(minutes[start]) == ahead
