"""Child processes of this command line: started with a log, watched, and stopped by their ids.

Each holds the read end of a pipe as its standard input and stops when that ends, so that none
outlives a parent that was killed (`plait.cli.lifeline`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Protocol, Self

from plait.cli.lifeline import LIFELINE
from plait.errors import ServiceError

STOP_S: Final = 8.0
TAIL_LINES: Final = 25


class ChildError(ServiceError):
    """A child process ended when it should not have; the message carries its last lines."""

    reason = "child_ended"


class Process(Protocol):
    """As much of `subprocess.Popen` as is asked of one."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        ...

    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(slots=True)
class Child:
    """One process. `log_path` receives what it prints, output and errors together."""

    name: str
    log_path: Path
    process: Process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def tail(self, num_lines: int = TAIL_LINES) -> str:
        """The last lines of the log."""
        with contextlib.suppress(OSError):
            lines = self.log_path.read_text("utf-8", "replace").splitlines()
            return "\n".join(lines[-num_lines:])
        return ""

    def check(self) -> None:
        """Raises ChildError when the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise ChildError(
                f"{self.name} ended with {code}; its log ({self.log_path}) ends so:\n{self.tail()}"
            )


@dataclass(slots=True)
class Children:
    """A context that leaves no process behind, newest first."""

    log_dir: Path
    children: list[Child] = field(default_factory=list)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        prefix: Sequence[str] = (),
    ) -> Child:
        """Run `plait ARGUMENTS` with these variables on top of ours, by way of the command `prefix`
        that becomes it. Its own session: a Ctrl-C in the terminal reaches us alone, and we stop
        it in order."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        log_path = self.log_dir / f"{name.replace(' ', '-')}.log"
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", LIFELINE: "1", **environment}
        child = Child(name, log_path, self.launch(arguments, variables, log_path, prefix))
        self.children.append(child)
        return child

    def launch(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        prefix: Sequence[str],
    ) -> Process:
        """The process itself, with these variables and no others."""
        with log_path.open("ab") as log:
            return subprocess.Popen(
                [*prefix, sys.executable, "-m", "plait.cli.main", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def forget(self, child: Child) -> None:
        """Wait for a child that was ended on purpose, and watch it no more."""
        child.process.wait(STOP_S)
        _let_go(child.process)
        self.children.remove(child)

    def check(self) -> None:
        """Raises ChildError when any child has ended."""
        for child in self.children:
            child.check()

    def stop(self, *, timeout_s: float = STOP_S) -> None:
        """SIGTERM to all, newest first; SIGKILL to what is left after `timeout_s`."""
        waiting = [child for child in reversed(self.children) if child.is_running]
        for child in waiting:
            _signal(child.process, signal.SIGTERM)
        deadline_s = time.perf_counter() + timeout_s
        for child in waiting:
            try:
                child.process.wait(max(0.0, deadline_s - time.perf_counter()))
            except subprocess.TimeoutExpired:
                _signal(child.process, signal.SIGKILL)
                child.process.wait()
        for child in self.children:
            _let_go(child.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _let_go(process: Process) -> None:
    """Close our end of its standard input."""
    if process.stdin is not None:
        process.stdin.close()
