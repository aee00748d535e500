"""The file that health checks read: fresh while the node moves, gone or disbelieved after."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.agent.local_status import STALE_MS, StatusKeeper, read_local_status
from node.ports import NodePhase, Progress
from plait.cli.app import app
from plait.clock import ManualClock, SystemClock

SERVING = Progress(phase=NodePhase.SERVING, detail="layers 0-10 of tiny")


@pytest.mark.parametrize("phase", list(NodePhase))
async def test_serving_and_standing_by_are_healthy(tmp_path: Path, phase: NodePhase) -> None:
    clock, heard = ManualClock(), list[Progress]()
    async with StatusKeeper(tmp_path / "n", clock, heard.append) as keeper:
        keeper.show(Progress(phase=phase, detail="x" * 9_000))
        status = read_local_status(tmp_path / "n", clock)
    assert status is not None and status.phase is phase
    assert status.is_healthy == (phase in (NodePhase.SERVING, NodePhase.STANDBY, NodePhase.PAUSED))
    assert [progress.phase for progress in heard] == [phase]
    assert read_local_status(tmp_path / "n", clock) is None


async def test_a_node_that_stopped_moving_is_not_believed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with StatusKeeper(tmp_path, clock, lambda _: None) as keeper:
        keeper.show(SERVING)
        clock.advance(STALE_MS - 1)
        assert read_local_status(tmp_path, clock) is not None
        clock.advance(1)
        assert read_local_status(tmp_path, clock) is None


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


async def test_a_node_that_died_is_not_believed(tmp_path: Path, dead_pid: int) -> None:
    clock = ManualClock()
    async with StatusKeeper(tmp_path, clock, lambda _: None) as keeper:
        keeper.show(SERVING)
        content = json.loads((tmp_path / "status.json").read_text())
        assert content["pid"] == os.getpid()
        (tmp_path / "status.json").write_text(json.dumps(content | {"pid": dead_pid}))
        assert read_local_status(tmp_path, clock) is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"phase": "serving"}', '{"phase": 7}', "\0"])
def test_what_is_no_status_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    assert read_local_status(tmp_path, ManualClock()) is None


async def test_a_folder_that_takes_no_more_does_not_end_the_node(tmp_path: Path) -> None:
    (tmp_path / "status.json.new").mkdir()
    async with StatusKeeper(tmp_path, ManualClock(), lambda _: None) as keeper:
        keeper.show(SERVING)
    assert read_local_status(tmp_path, ManualClock()) is None


async def test_the_command_tells_by_its_exit_code(tmp_path: Path) -> None:
    command = ["node", "status", "--quiet", "--home", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 1
    async with StatusKeeper(tmp_path, SystemClock(), lambda _: None) as keeper:
        keeper.show(Progress(phase=NodePhase.OFFLINE, detail="no answer"))
        offline = CliRunner().invoke(app, command)
        assert (offline.exit_code, "offline: no answer" in offline.output) == (1, True)
        keeper.show(SERVING)
        serving = CliRunner().invoke(app, command)
        assert (serving.exit_code, serving.output) == (0, "")
