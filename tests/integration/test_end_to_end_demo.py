"""`plait demo` as a stranger runs it: a table, an answer, and nothing left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "plait.cli.main", "demo"]


@contextmanager
def running_demo(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A demo process with its temporary files under `folder`, and the file of what it prints."""
    shown = folder / "shown.txt"
    temporary = folder / "tmp"
    temporary.mkdir()
    with shown.open("wb") as out:
        demo = subprocess.Popen(
            [*COMMAND, *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "100"},
        )
    try:
        yield demo, temporary
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)
            demo.wait(30)


def test_a_demo_answers_stays_while_wanted_and_leaves_nothing(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    options = ("--model", str(tmp_path / "tiny"), "--nodes", "2", "--max-tokens", "8", "--keep")
    with running_demo(tmp_path, *options) as (demo, temporary):
        shown = tmp_path / "shown.txt"

        def is_kept() -> bool:
            assert demo.poll() is None, shown.read_text()
            return "Ctrl-C stops it" in shown.read_text()

        until_sync(is_kept, timeout_s=90, what="a demo that answered")
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len([c for c in children if "join" in c.cmdline()]) == 2
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 0
    text = shown.read_text()
    assert text.count("serving") >= 3, text
    assert "tokens/s" in text and "dashboard http://127.0.0.1:" in text
    chain = next(line for line in text.splitlines() if "tokens/s" in line)
    assert "node 1 [" in chain and "node 2 [" in chain, "neither holds the model alone"
    assert not any(child.is_running() for child in children)
    assert list(temporary.glob("plait-demo-*")) == []


def test_what_cannot_be_shown_is_said_in_a_line(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--model", "smolm2-135m-instruct") as (demo, temporary):
        assert demo.wait(60) == 1
        assert list(temporary.iterdir()) == []
    text = (tmp_path / "shown.txt").read_text()
    assert "Did you mean smollm2-135m-instruct?" in " ".join(text.split())
    assert "Traceback" not in text
