"""Figures as people read them. Pure."""

from typing import Final

DASH: Final = "\u2013"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def num_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(count)
    for unit in _UNITS:
        if value < 1_024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1_024
    raise AssertionError


def rate(bytes_per_s: float) -> str:
    """Bytes a second; a dash where not measured."""
    return f"{num_bytes(bytes_per_s)}/s" if bytes_per_s > 0 else DASH


def count(number: int) -> str:
    """Thousands apart, by a thin space."""
    return f"{number:,}".replace(",", "\u202f")


def milliseconds(value: float | None) -> str:
    """Three figures at most, whole ones as they are; seconds from 10 s on."""
    if value is None:
        return DASH
    if isinstance(value, int) and value < 10_000:
        return f"{value} ms"
    if value >= 10_000:
        return f"{value / 1_000:.1f} s"
    if value >= 100:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def measured(value: float) -> str:
    """A time that is 0 until it is measured."""
    return milliseconds(value) if value > 0 else DASH


def age(value_ms: int | None) -> str:
    """How long ago or for how long, coarsely."""
    if value_ms is None:
        return DASH
    seconds = max(0, value_ms) // 1_000
    if seconds < 1:
        return "now"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def ago(value_ms: int | None) -> str:
    """How long ago, as a phrase."""
    said = age(value_ms)
    return said if said in ("now", DASH) else f"{said} ago"


def per_second(value: float) -> str:
    """Tokens a second."""
    return f"{value:.1f}" if value < 100 else count(round(value))


def layers(span: tuple[int, int] | None) -> str:
    """First and last layer, counted as in logs: 0-based, inclusive; one where there is one."""
    if span is None:
        return DASH
    start, last = span[0], span[1] - 1
    return str(start) if start == last else f"{start}\u2013{last}"
