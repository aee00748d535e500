"""What an owner types: pause, resume, install, top, and limits that will not do."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.agent.figures import FiguresFile, ServingFigures, read_figures
from node.agent.local_status import StatusKeeper
from node.owner.hardware import FileHardware, HardwareReading
from node.owner.pause import PauseFile
from node.owner.settings import read_settings
from node.owner.watch import OwnerWatch
from node.ports import NodePhase, Progress
from plait.cli.node import app
from plait.clock import ManualClock, SystemClock
from plait.errors import ConfigError

RUN = CliRunner()


def said(*words: str) -> str:
    result = RUN.invoke(app, list(words))
    if isinstance(result.exception, ConfigError):
        return result.exception.message
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def test_a_pause_is_kept_for_the_next_start_and_lifted(tmp_path: Path) -> None:
    assert "the next one starts paused" in said("pause", "2h", "--home", str(tmp_path))
    pause = PauseFile(tmp_path).read(SystemClock().unix_ms())
    assert pause is not None and pause.until_unix_ms == pause.since_unix_ms + 7_200_000
    assert "the next one starts lent" in said("resume", "--home", str(tmp_path))
    assert PauseFile(tmp_path).read(0) is None
    assert "it was not paused" in said("resume", "--home", str(tmp_path))


def test_a_pause_of_less_than_nothing_is_refused(tmp_path: Path) -> None:
    assert "'-3h' is no length of a pause" in said("pause", "--home", str(tmp_path), "--", "-3h")
    assert PauseFile(tmp_path).read(0) is None


def test_wrong_limits_are_said_before_anything_is_done(tmp_path: Path) -> None:
    home = tmp_path / "home"
    words = ["join", "c:1", "--token", "plait1.x", "--home", str(home)]
    assert said(*words, "--set", "up=8").startswith("--set: up is no setting")
    limits = tmp_path / "mine.toml"
    limits.write_text("\n\ntemp_max = 80\n")
    message = said(*words, "--limits", str(limits))
    assert message == f"{limits}:3: temp_max is no setting; did you mean temp_max_c?"
    only_cpu = said(*words, "--set", "devices=cpu", "--device", "cuda:0")
    assert only_cpu == "--device cuda:0: --set: devices allows cpu alone"
    assert not home.exists()


def test_what_never_joined_is_not_installed(tmp_path: Path) -> None:
    assert "join once" in said("install", "--home", str(tmp_path), "--kind", "systemd")
    assert "choose auto" in said("install", "--home", str(tmp_path), "--kind", "upstart")


async def test_figures_are_written_read_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(unix_ms=SystemClock().unix_ms())
    hardware = tmp_path / "hardware.json"
    hardware.write_text('{"gpu_temp_c": 61, "power_w": 250}')
    settings = read_settings(tmp_path / "n", environ={}, flags=["up_mbit=8", "temp_max_c=80"])
    owner = OwnerWatch(settings, tmp_path, FileHardware(hardware), clock)
    await owner.start()
    serving = ServingFigures(
        state="serving",
        model_id="tiny",
        layers="2-3",
        num_requests=3,
        tokens_total=12_345,
        stage_ms=4.5,
        kv_tokens_reserved=256,
        kv_tokens_max=1_024,
        weight_bytes=1 << 30,
        sent_bytes=5_000,
        received_bytes=1_000,
        draft="smallest: refused: other words",
    )
    FiguresFile(tmp_path, clock, lambda: 17).write(owner, serving)
    owner.stop()
    figures = read_figures(tmp_path, clock)
    assert figures is not None and figures.serving == serving
    assert figures.num_tasks == 17
    assert figures.limits == ("temp_max_c = 80 (--set)", "up_mbit = 8 (--set)")
    monkeypatch.setenv("COLUMNS", "120")
    async with StatusKeeper(tmp_path, clock, lambda _: None) as status:
        status.show(Progress(phase=NodePhase.SERVING, detail="layers 2-3 of tiny"))
        screen = said("top", "--once", "--home", str(tmp_path))
    for word in (
        "layers 2-3 of tiny",
        "12,345 served",
        "61 °C, 250 W",
        "25 % in use",
        "smallest: refused: other words",
        "up_mbit = 8",
    ):
        assert word in screen
    clock.advance(60_000)
    assert read_figures(tmp_path, clock) is None


async def test_the_watch_tells_changes_once_and_survives_hardware_that_fails(
    tmp_path: Path,
) -> None:
    class Failing:
        """Raises at its first look."""

        num_looks = 0

        def read(self) -> HardwareReading:
            self.num_looks += 1
            if self.num_looks == 1:
                raise RuntimeError("no bus")
            return HardwareReading(is_on_battery=True)

        def set_power_limit(self, limit_w: float) -> str:
            return ""

    hardware = Failing()
    settings = read_settings(tmp_path / "n", environ=os.environ, flags=["pause_when.battery=true"])
    owner = OwnerWatch(settings, tmp_path, hardware, SystemClock())
    await owner.start()
    try:
        assert owner.look() is None
        while owner.look() is None:
            await owner.looked()
        assert owner.why is not None and owner.why.code == "battery"
    finally:
        owner.stop()
