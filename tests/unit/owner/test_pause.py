"""The owner's pause and the month's traffic, kept on disk."""

from datetime import datetime
from pathlib import Path

import pytest

from node.owner.pause import FILE, Pause, PauseFile, parse_duration_s
from node.owner.usage import TrafficMeter
from plait.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7_200), ("45m", 2_700), ("45 min", 2_700), ("1h30m", 5_400), ("1d", 86_400), ("9s", 9)],
)
def test_lengths(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["-3h", "3", "", "h", "0h", "2 weeks", "1e9h", "999999d", "2h x"])
def test_what_is_no_length_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="pause"):
        parse_duration_s(text)


def test_a_pause_lasts_until_it_is_over_or_lifted(tmp_path: Path) -> None:
    file = PauseFile(tmp_path)
    assert file.read(0) is None and not file.lift()
    file.write(Pause(1_000, 5_000))
    assert PauseFile(tmp_path).read(4_999) == Pause(1_000, 5_000)
    assert PauseFile(tmp_path).read(5_000) is None
    file.write(Pause(1_000, None))
    assert PauseFile(tmp_path).read(10**15) == Pause(1_000, None)
    assert file.lift() and file.read(0) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"since_unix_ms": "x"}'])
def test_a_pause_that_cannot_be_read_holds(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert PauseFile(tmp_path).read(0) == Pause(0, None)


def june(day: int) -> datetime:
    return datetime(2026, 6, day)  # noqa: DTZ001 - a local time


def test_traffic_is_kept_over_restarts_and_begins_anew_each_month(tmp_path: Path) -> None:
    total = [100]
    meter = TrafficMeter(tmp_path, lambda: total[0], june(1))
    total[0] = 1_100
    assert meter.month_bytes(june(2), 10_000) == 1_000
    total[0] = 1_500
    assert meter.month_bytes(june(2), 10_001) == 1_400
    meter.save()
    again = TrafficMeter(tmp_path, lambda: 0, june(3))
    assert again.month_bytes(june(3), 0) == 1_400
    july = datetime(2026, 7, 1)  # noqa: DTZ001
    assert again.month_bytes(july, 0) == 0
    assert TrafficMeter(tmp_path, lambda: 0, july).month_bytes(july, 0) == 0


def test_a_disk_that_takes_no_more_costs_the_figure_alone(tmp_path: Path) -> None:
    (tmp_path / "traffic.json.new").mkdir()
    meter = TrafficMeter(tmp_path, lambda: 0, june(1))
    assert meter.month_bytes(june(1), 60_000) == 0
