"""A live view on a real terminal: a key ends it, and the terminal is as it was."""

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from plait.clock import SystemClock

PATIENCE_S = 20


def read_until(terminal: int, what: str) -> str:
    """What came, with `what` in it. Raises TimeoutError with what came instead."""
    clock, seen = SystemClock(), ""
    end_ms = clock.monotonic_ms() + PATIENCE_S * 1_000
    while what not in seen:
        left_s = max(0, end_ms - clock.monotonic_ms()) / 1_000
        if not select.select([terminal], [], [], left_s)[0]:
            raise TimeoutError(seen)
        seen += os.read(terminal, 4_096).decode("utf-8", "replace")
    return seen


@pytest.mark.parametrize("typed", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_node_top_ends_on_a_key(tmp_path: Path, typed: bytes) -> None:
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        view = subprocess.Popen(
            [sys.executable, "-m", "plait.cli.main", "node", "top", "--home", str(tmp_path)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=own_terminal,
        )
        try:
            assert "no node runs here" in read_until(ours, "q or Ctrl-C ends")
            os.write(ours, typed)
            assert view.wait(PATIENCE_S) == 0
        finally:
            view.kill()
            view.wait(10)
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def own_terminal() -> None:
    """Ctrl-C reaches whom the terminal belongs to."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
