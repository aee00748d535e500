"""Amounts of memory and addresses to listen at, as people write them."""

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


def parse_listen(text: str) -> str:
    """HOST:PORT, an empty host filled in. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--listen {text!r}: write HOST:PORT, port 0 for any free one")
    return f"{host or '0.0.0.0'}:{port}"
