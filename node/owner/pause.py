"""The owner's own pause: a small file that lasts over restarts until it is lifted or over."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.config import write_private
from plait.crypto.files import private_dir
from plait.errors import ConfigError

FILE: Final = "pause.json"
BYTES_MAX: Final = 4_096
SECONDS_MAX: Final = 366 * 86_400
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "min": 60, "s": 1}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(min|d|h|m|s)")


@dataclass(frozen=True, slots=True)
class Pause:
    """Since when the owner paused the node, and until when; None: until it is lifted."""

    since_unix_ms: int
    until_unix_ms: int | None

    def is_over(self, now_unix_ms: int) -> bool:
        return self.until_unix_ms is not None and now_unix_ms >= self.until_unix_ms


class PauseFile:
    """The pause in a node's folder. Commands write it, the node reads it."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE

    def read(self, now_unix_ms: int) -> Pause | None:
        """The pause in force. One that cannot be read holds: an owner's word is not lost."""
        try:
            with self._path.open("rb") as file:
                content = json.loads(file.read(BYTES_MAX))
            until = content["until_unix_ms"]
            pause = Pause(int(content["since_unix_ms"]), int(until) if until is not None else None)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return Pause(0, None)
        return None if pause.is_over(now_unix_ms) else pause

    def write(self, pause: Pause) -> None:
        """Raises ConfigError where the folder cannot be written."""
        content = {"since_unix_ms": pause.since_unix_ms, "until_unix_ms": pause.until_unix_ms}
        private_dir(self._path.parent)
        try:
            write_private(self._path, json.dumps(content).encode())
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}") from None

    def lift(self) -> bool:
        """Remove it; whether there was one. Raises ConfigError where it cannot be removed."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be removed: {error.strerror}") from None
        return True


def parse_duration_s(text: str) -> int:
    """Seconds in "2h", "90m", "1h30m", "1d". Raises ConfigError."""
    word = text.strip().lower()
    parts = _PART.findall(word)
    is_whole = bool(parts) and re.sub(r"\s", "", word) == "".join(a + b for a, b in parts)
    if not is_whole:
        why = "a pause does not end before it begins" if word.startswith("-") else "it is none"
        raise ConfigError(f"{text!r} is no length of a pause ({why}): write it like 2h, 45m or 1d")
    total = sum(float(amount) * _UNITS[unit] for amount, unit in parts)
    if not 1 <= total <= SECONDS_MAX:
        raise ConfigError(
            f"a pause of {text!r}: give between 1s and 366d, or none to pause for good"
        )
    return round(total)
