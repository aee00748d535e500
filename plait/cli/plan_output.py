"""What all of `plait plan` does with a plan: show it, print it for programs, write it."""

import json
from dataclasses import dataclass
from pathlib import Path

from plait.clock import SystemClock
from plait.errors import ConfigError, plain_cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a plan is shown."""

    as_json: bool
    is_explained: bool
    out: Path | None


class Watch:
    """Measures a block."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.passed_ms = 0

    def __enter__(self) -> "Watch":
        self._started_ms = self._clock.monotonic_ms()
        return self

    def __exit__(self, *_: object) -> None:
        self.passed_ms = self._clock.monotonic_ms() - self._started_ms


def write_plan(path: Path | None, content: dict[str, object]) -> None:
    """Write it there, if anywhere. Raises ConfigError."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {plain_cause(error)}") from error


def counted(count: int, one: str, more: str) -> str:
    """`1 chain`, `2 chains`."""
    return f"{count} {one if count == 1 else more}"
