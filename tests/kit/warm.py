"""Processes of `plait` that start warm: forked from one that has imported what nodes and
coordinators import, which takes seconds each time. What they run, and their ids, are their own.

What is decided while a module is imported is decided already: a test that sets such variables, or
looks at how a program starts, starts it cold.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Final

from plait.cli.children import Children, Process

PRELOADED: Final = (
    "plait.cli.app",
    "plait.cli.node_run",
    "plait.cli.node_view",
    "node.agent.joining",
    "node.owner.machine",
    "node.paused",
    "node.main",
    "coordinator.main",
    "cryptography.hazmat.backends.openssl.backend",
    "fastapi.middleware.gzip",
    "nicegui.ui_run_with",
    "scheduler.selection.rough",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "uvicorn.lifespan.on",
    "tokenizers",
    "tests.kit.probed",
    "tests.kit.kept",
)
_SERVER: Final = multiprocessing.get_context("forkserver")
_ON_A_HOST: Final = ("ip", "netns", "exec")
_NETWORK: Final = 0x40000000
"""CLONE_NEWNET of setns(2)."""


class WarmProcess:
    """As much of `subprocess.Popen` as children need."""

    def __init__(self, process: ForkServerProcess, stdin: IO[bytes]) -> None:
        self._process = process
        self.stdin: IO[bytes] | None = stdin

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired("plait", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmChildren(Children):
    """Those that another command than a host's (`tests.kit.netns`) starts are cold."""

    def launch(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        prefix: Sequence[str],
    ) -> Process:
        is_on_a_host = tuple(prefix[:-1]) == _ON_A_HOST
        if prefix and not is_on_a_host:
            return super().launch(arguments, environment, log_path, prefix)
        _SERVER.set_forkserver_preload([*PRELOADED])
        theirs, ours = os.pipe()
        stdin = Connection(theirs, writable=False)
        process = _SERVER.Process(
            target=_run,
            args=(
                tuple(arguments),
                dict(environment),
                str(log_path),
                stdin,
                prefix[-1] if prefix else None,
            ),
        )
        process.start()
        stdin.close()
        return WarmProcess(process, os.fdopen(ours, "wb"))


def _run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log_path: str,
    stdin: Connection,
    namespace: str | None,
) -> None:
    """In the child: what a shell and the interpreter would have done, then the command."""
    os.setsid()
    if namespace is not None:
        _enter(namespace)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor, stream in ((0, stdin.fileno()), (1, log), (2, log)):
        os.dup2(stream, descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(descriptor, mode, buffering=1, closefd=False)
        for descriptor, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["plait", *arguments]
    sys.orig_argv = [sys.executable, "-m", "plait.cli.main", *arguments]
    runpy.run_module("plait.cli.main", run_name="__main__")


def _enter(namespace: str) -> None:
    """A network namespace that `ip netns` made. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/var/run/netns/{namespace}").open() as opened:
        if libc.setns(opened.fileno(), _NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "setns", namespace)
