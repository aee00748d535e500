"""What a node does right now, for others on its machine: a small file that is kept fresh.

Health checks and `plait node status` read it. A file that was not touched for STALE_MS belongs to a
process that died or hangs.
"""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from node.ports import NodePhase, Progress, ProgressSink
from plait import log
from plait.clock import Clock
from plait.crypto.files import private_dir

BEAT_S: Final = 5.0
STALE_MS: Final = 20_000
BYTES_MAX: Final = 4_096
DETAIL_CHARS_MAX: Final = 200
_FILE: Final = "status.json"
_HEALTHY: Final = frozenset({NodePhase.SERVING, NodePhase.STANDBY, NodePhase.PAUSED})

_log = log.get("node")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStatus:
    """The last word of the node that runs from a folder."""

    phase: NodePhase
    detail: str
    pid: int

    @property
    def is_healthy(self) -> bool:
        """Whether it serves, or stands by for the plan or its owner."""
        return self.phase in _HEALTHY


class StatusKeeper:
    """Writes the file while its block lasts, removes it at the end; passes progress on.

    A disk that takes no more costs the file, never the node.
    """

    def __init__(self, home: Path, clock: Clock, progress: ProgressSink) -> None:
        self._path = home / _FILE
        self._clock = clock
        self._progress = progress
        self._status = _status(NodePhase.CONNECTING, "")
        self._is_failing = False
        self._beating: asyncio.Task[None] | None = None

    def show(self, progress: Progress) -> None:
        """A `node.ports.ProgressSink`: pass on, and write what changed. Shares are not kept."""
        self._progress(progress)
        status = _status(progress.phase, progress.detail)
        if status != self._status:
            self._status = status
            self._write()

    async def _beat(self) -> None:
        while True:
            self._write()
            await asyncio.sleep(BEAT_S)

    def _write(self) -> None:
        content = {
            "phase": self._status.phase,
            "detail": self._status.detail,
            "pid": self._status.pid,
            "unix_ms": self._clock.unix_ms(),
        }
        draft = self._path.with_name(_FILE + ".new")
        try:
            # Not forced to the disk: after a crash of the machine nobody believes it anyway.
            draft.write_text(json.dumps(content), "utf-8")
            draft.replace(self._path)
        except OSError as error:
            if not self._is_failing:
                _log.warning("status_not_written", path=str(self._path), why=error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False

    async def __aenter__(self) -> Self:
        private_dir(self._path.parent)
        self._beating = asyncio.create_task(self._beat(), name="status")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._beating is not None:
            self._beating.cancel()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as problem:
            _log.warning("status_not_removed", path=str(self._path), why=problem.strerror)


def read_local_status(home: Path, clock: Clock) -> LocalStatus | None:
    """What the node in `home` last said; None where none runs, or it does not move any more."""
    try:
        with (home / _FILE).open("rb") as file:
            content = json.loads(file.read(BYTES_MAX))
        pid, age_ms = int(content["pid"]), clock.unix_ms() - int(content["unix_ms"])
        phase, detail = NodePhase(content["phase"]), str(content["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not is_running(pid) or abs(age_ms) >= STALE_MS:
        return None
    return LocalStatus(phase=phase, detail=detail, pid=pid)


def _status(phase: NodePhase, detail: str) -> LocalStatus:
    return LocalStatus(phase=phase, detail=detail[:DETAIL_CHARS_MAX], pid=os.getpid())


def is_running(pid: int) -> bool:
    """Whether there is a process of that number."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
