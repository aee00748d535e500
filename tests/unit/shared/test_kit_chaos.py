"""The chaos kit does to processes what it says."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.kit.chaos import frozen, kill, needs_faketime, needs_root, skewed_clock, small_disk
from tests.kit.netns import hosts, needs_hosts
from tests.kit.wait import until_sync

WAITING = [sys.executable, "-c", "input()"]
CLOCKS = "import time; print(time.time_ns() // 10**9, time.monotonic_ns() // 10**9)"


def clocks(*prefix: str) -> tuple[int, int]:
    """(wall, monotonic) seconds as a new process sees them."""
    said = subprocess.run(
        [*prefix, sys.executable, "-c", CLOCKS], capture_output=True, text=True, check=True
    )
    wall_s, monotonic_s = said.stdout.split()
    return int(wall_s), int(monotonic_s)


def test_a_frozen_process_stands_still_until_the_block_ends_and_a_killed_one_is_gone() -> None:
    with subprocess.Popen(WAITING, stdin=subprocess.PIPE) as process:
        watched = psutil.Process(process.pid)
        with frozen(process.pid):
            until_sync(lambda: watched.status() == psutil.STATUS_STOPPED, what="the frost")
        until_sync(lambda: watched.status() != psutil.STATUS_STOPPED, what="the thaw")
        kill(process.pid)
        assert process.wait(5) == -9
        kill(process.pid)


@needs_faketime
def test_a_skewed_process_has_another_wall_clock_and_the_same_durations() -> None:
    wall_s, monotonic_s = clocks()
    later_s, monotonic_later_s = clocks(*skewed_clock(600.0))
    assert 600 <= later_s - wall_s < 660
    assert 0 <= monotonic_later_s - monotonic_s < 60


@needs_root
def test_a_small_disk_is_soon_full(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", size_bytes=1 << 20) as disk,
        pytest.raises(OSError, match="No space left"),
    ):
        (disk / "large").write_bytes(bytes(2 << 20))


@needs_hosts
def test_hosts_reach_each_other_until_they_are_parted() -> None:
    dial = "import socket; socket.create_connection(('{}', 9), timeout=0.2)"

    def heard(a: str, b: str) -> bool:
        """A refusal is an answer."""
        command = [*made[a].prefix, sys.executable, "-c", dial.format(made[b].address)]
        return b"refused" in subprocess.run(command, capture_output=True, check=False).stderr

    with hosts("a", "b", "c") as made:
        assert heard("a", "b") and heard("b", "c")
        made["a"].part_from(made["b"])
        assert not heard("a", "b") and heard("b", "c")
        made["a"].heal()
        made["b"].heal()
        assert heard("a", "b")
