"""What befalls real processes and machines: death, frost, slowness, a full disk, a wrong clock."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.kit.tools import needs

FAKETIME: Final = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
needs_faketime: Final = needs(FAKETIME, "libfaketime", "faketime")
needs_root: Final = needs(os.geteuid() == 0 and shutil.which("mount"), "root's mount", "mount")
SLICE_S: Final = 0.004
"""A slowed process runs for a part of each such slice."""


def kill(pid: int) -> None:
    """SIGKILL, at once and without a word; a process that is gone already is fine.

    Numbers below 2 are no process of ours: 0 would be our whole group, the tests' own included.
    """
    assert pid > 1, f"{pid} is no process to kill"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP until the block ends: its sockets stay open and take bytes, and nobody reads them."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def stuttering(pid: int, *, runs_s: float, stops_s: float) -> Iterator[None]:
    """Let a process run and stop it, in turns, until the block ends."""
    is_over = threading.Event()

    def run() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not is_over.is_set():
                os.kill(pid, signal.SIGSTOP)
                is_over.wait(stops_s)
                os.kill(pid, signal.SIGCONT)
                is_over.wait(runs_s)

    thread = threading.Thread(target=run, name="stuttering", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def slowed(pid: int, *, factor: float) -> Iterator[None]:
    """Let a process run for one part in `factor` of the time until the block ends."""
    with stuttering(pid, runs_s=SLICE_S / factor, stops_s=SLICE_S * (1 - 1 / factor)):
        yield


@contextlib.contextmanager
def small_disk(folder: Path, *, size_bytes: int) -> Iterator[Path]:
    """A file system of its own at `folder`, which is made. Skips the test where it may not be
    mounted; see `needs_root`."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk is mounted by root alone, where it may mount at all")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def grow_disk(folder: Path, *, size_bytes: int) -> None:
    """Give the file system of a `small_disk` more room."""
    mount = ["mount", "-o", f"remount,size={size_bytes}", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)


def skewed_clock(offset_s: float) -> tuple[str, ...]:
    """A command before another, which then believes that it is so much later (earlier: below 0).
    Only its wall clock is off: durations are right."""
    assert FAKETIME is not None, "mark the test with needs_faketime"
    offset = f"FAKETIME={offset_s:+.0f}s"
    return ("env", f"LD_PRELOAD={FAKETIME}", offset, "FAKETIME_DONT_FAKE_MONOTONIC=1")
