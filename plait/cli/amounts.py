"""Amounts of memory as people write them."""

import re
from typing import Final

from plait.errors import ConfigError

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """Bytes in "2GiB", "512M", "1.5 GB" (units are powers of two). Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(?:i?[bB])?\s*", text)
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if size <= 0:
        raise ConfigError(f"{text!r} is not an amount of memory: write it like 2GiB or 512MiB")
    return size
