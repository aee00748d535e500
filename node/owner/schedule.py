"""Hours in which a machine is lent: "mon-fri 18:00-08:00", "sat,sun 00:00-24:00", "22:00-06:00"."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from plait.errors import ConfigError

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MIN: Final = 24 * 60
_WEEK_MIN: Final = 7 * _DAY_MIN
_ENTRY: Final = re.compile(
    r"(?:(?P<days>[a-z,\- ]+?)\s+)?(?P<start>\d?\d:\d\d)-(?P<end>\d?\d:\d\d)"
)
HINT: Final = 'write it like "mon-fri 18:00-08:00" or "sat,sun 00:00-24:00"'


@dataclass(frozen=True, slots=True)
class Schedule:
    """Minutes of the week, from Monday's midnight, in which the machine is lent: sorted, disjoint
    half-open ranges. Local time."""

    open_min: tuple[tuple[int, int], ...]
    entries: tuple[str, ...]

    @classmethod
    def parse(cls, entries: tuple[str, ...]) -> "Schedule":
        """Raises ConfigError for an entry that cannot be read and for a schedule with no hour."""
        ranges = [found for entry in entries for found in _ranges(entry)]
        if not ranges:
            raise ConfigError(
                f"no hour is open, so the machine would never serve: {HINT}, or leave it out"
            )
        return cls(_merged(ranges), entries)

    def is_open(self, now: datetime) -> bool:
        """Whether the machine is lent at this local time."""
        minute = _minute(now)
        return any(start <= minute < end for start, end in self.open_min)

    def opens_in_min(self, now: datetime) -> int:
        """Minutes until it is lent again; 0 while it is."""
        if self.is_open(now):
            return 0
        minute = _minute(now)
        return min((start - minute) % _WEEK_MIN for start, _ in self.open_min)


def _ranges(entry: str) -> list[tuple[int, int]]:
    match = _ENTRY.fullmatch(entry.strip().lower())
    if match is None:
        raise ConfigError(f"{entry!r} is not a time of the week: {HINT}")
    start, end = _clock(match["start"], entry), _clock(match["end"], entry)
    if start == end:
        raise ConfigError(
            f"{entry!r} has no hour: it ends when it begins; a whole day is 0:00-24:00"
        )
    length = (end - start) % _DAY_MIN or _DAY_MIN
    found: list[tuple[int, int]] = []
    for day in _days(match["days"] or "mon-sun", entry):
        begin = day * _DAY_MIN + start
        over = begin + length - _WEEK_MIN
        found.append((begin, min(begin + length, _WEEK_MIN)))
        if over > 0:  # from Sunday night into Monday
            found.append((0, over))
    return found


def _days(text: str, entry: str) -> list[int]:
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        names = (first, last) if dash else (first, first)
        if any(name not in _DAYS for name in names):
            raise ConfigError(f"{entry!r}: {part!r} names no day; days are {', '.join(_DAYS)}")
        begin, end = (_DAYS.index(name) for name in names)
        found += [day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)]
    return found


def _clock(text: str, entry: str) -> int:
    hours, minutes = (int(part) for part in text.split(":"))
    if minutes > 59 or hours * 60 + minutes > _DAY_MIN:
        raise ConfigError(f"{entry!r}: {text} is no time of the day")
    return hours * 60 + minutes


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _minute(now: datetime) -> int:
    return now.weekday() * _DAY_MIN + now.hour * 60 + now.minute
