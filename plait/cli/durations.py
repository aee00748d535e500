"""Seconds from the command line, whatever was typed."""

import math
from typing import Final

from plait.errors import ConfigError

SECONDS_MAX: Final = 1e9


def milliseconds(seconds: float, *, flag: str) -> int:
    """Raises ConfigError that names `flag` for NaN, infinity and what is below 0."""
    if not math.isfinite(seconds) or not 0.0 <= seconds <= SECONDS_MAX:
        raise ConfigError(f"{flag} {seconds:g}: give seconds, 0 or more")
    return int(seconds * 1_000)
