"""Traffic of the calendar month, kept over restarts."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from plait import log

FILE: Final = "traffic.json"
BYTES_MAX: Final = 4_096
SAVE_MS: Final = 5_000

_log = log.get("node")


class TrafficMeter:
    """Counts bytes of both ways; what a crash may lose is that of the last SAVE_MS.

    `total_bytes` is what this process has sent and received since its start.
    """

    def __init__(self, home: Path, total_bytes: Callable[[], int], local: datetime) -> None:
        self._path = home / FILE
        self._total_bytes = total_bytes
        self._counted = total_bytes()
        self._month = _month(local)
        self._month_bytes = self._read()
        self._saved_ms = 0
        self._is_failing = False

    def month_bytes(self, local: datetime, now_ms: int) -> int:
        """This month's so far; writes it down now and then. `now_ms` is monotonic."""
        total = self._total_bytes()
        if _month(local) != self._month:
            self._month, self._month_bytes = _month(local), 0
        self._month_bytes += max(0, total - self._counted)
        self._counted = total
        if now_ms - self._saved_ms >= SAVE_MS:
            self._saved_ms = now_ms
            self.save()
        return self._month_bytes

    def save(self) -> None:
        """A disk that takes no more costs the figure, never the node."""
        draft = self._path.with_name(FILE + ".new")
        try:
            draft.write_text(json.dumps({"month": self._month, "bytes": self._month_bytes}))
            draft.replace(self._path)
        except OSError as error:
            if not self._is_failing:
                _log.warning("traffic_not_written", path=str(self._path), why=error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False

    def _read(self) -> int:
        try:
            with self._path.open("rb") as file:
                content = json.loads(file.read(BYTES_MAX))
            return max(0, int(content["bytes"])) if content["month"] == self._month else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0


def _month(local: datetime) -> str:
    return f"{local:%Y-%m}"
