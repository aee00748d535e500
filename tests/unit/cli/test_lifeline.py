"""Children of a parent that was killed outright stop by themselves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.kit.wait import until_sync

PARENT = """
import sys, time
from pathlib import Path
from plait.cli.children import Children
folder = Path(sys.argv[1])
words = ["node", "join", "--home", str(folder / "home"), "--token-file", str(folder / "token")]
with Children(folder / "logs") as children:
    child = children.start("waits", words, {})
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        log = tmp_path / "logs" / "waits.log"
        until_sync(
            lambda: "waiting_for_token_file" in log.read_text(), timeout_s=30, what="a child"
        )
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        parent.stdout.close()
    until_sync(lambda: not child.is_running(), timeout_s=20, what="the child's end")
