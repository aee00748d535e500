"""`plait node keep`: run a node as a child process, and start it anew when it is killed.

A machine that runs out of memory kills its largest process, which is the node. Here that costs a
pause: the next process joins with the same papers. One that dies again and again asks for less.
Services that `plait node install` makes are started anew by the system; this is for machines
without such a system, and for containers.
"""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Final

import typer

from plait.cli.amounts import parse_bytes
from plait.cli.extras import needs
from plait.cli.lifeline import LIFELINE

SETTINGS: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Of the command: all other words are for `plait node join`."""

WINDOW_S: Final = 600.0
DEATHS_MAX: Final = 3
"""So many in WINDOW_S, and from then on each process asks for less than the one before."""
SHARE: Final = 0.75
FIRST_WAIT_S: Final = 0.5
WAIT_S_MAX: Final = 60.0


class Restarts:
    """What follows when the child is killed. `memory_bytes` is what it was to use at most."""

    def __init__(self, memory_bytes: int | None, available_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._available_bytes = available_bytes
        self._deaths_s: deque[float] = deque()

    def died(self, now_s: float) -> float:
        """Count a death; returns how long to wait before the next start, in seconds. After
        DEATHS_MAX within WINDOW_S `memory_bytes` is less."""
        self._deaths_s.append(now_s)
        while self._deaths_s[0] < now_s - WINDOW_S:
            self._deaths_s.popleft()
        num_deaths = len(self._deaths_s)
        if num_deaths >= DEATHS_MAX:
            before = self.memory_bytes if self.memory_bytes is not None else self._available_bytes
            self.memory_bytes = round(before * SHARE)
        return min(WAIT_S_MAX, FIRST_WAIT_S * 2.0 ** (num_deaths - 1))


class Keeper:
    """One child at a time. SIGTERM and Ctrl-C are handed on to it; its orderly end is ours."""

    def __init__(self, arguments: Sequence[str], restarts: Restarts) -> None:
        self._arguments = tuple(arguments)
        self._restarts = restarts
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Returns the exit code of the child that ended by itself, or was asked to."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hand_on)
        while True:
            code = self._run_once()
            if code >= 0 or self._is_stopping:
                return code if code >= 0 else 128 - code
            wait_s = self._restarts.died(time.perf_counter())
            typer.echo(f"the node was killed (signal {-code}); again in {wait_s:g} s", err=True)
            time.sleep(wait_s)

    def _run_once(self) -> int:
        memory_bytes = self._restarts.memory_bytes
        cap = ["--memory", f"{memory_bytes}B"] if memory_bytes is not None else []
        command = [sys.executable, "-m", "plait.cli.main", "node", "join", *self._arguments, *cap]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # it ends when we are gone
            env={**os.environ, LIFELINE: "1"},
            start_new_session=True,  # a Ctrl-C in the terminal reaches it once, through us
        )
        return self._child.wait()

    def _hand_on(self, number: int, _: FrameType | None) -> None:
        self._is_stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def keep(
    context: typer.Context,
    memory: Annotated[str | None, typer.Option(help="As for `plait node join`.")] = None,
) -> None:
    """Join as `plait node join` does, with the same words, and start the node anew whenever it is
    killed, as a machine without memory does. Three deaths in ten minutes: it asks for less."""
    needs("node")
    import psutil

    cap_bytes = parse_bytes(memory) if memory is not None else None
    restarts = Restarts(cap_bytes, psutil.virtual_memory().available)
    raise typer.Exit(Keeper(context.args, restarts).run())
