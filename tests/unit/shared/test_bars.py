"""A benchmark says in a line whether a bar holds, and --strict makes a miss a failure."""

import argparse
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks._bars import Bar, add_options, at_least, judge, write_figures

FAST = Bar(name="choose", measured=19.0, most=20.0, unit="us")
SLOW = Bar(name="choose", measured=21.0, most=20.0, unit="us")
GAIN = Bar(name="gain", measured=1.8, least=1.8)
NONE = Bar(name="gain", measured=float("nan"), least=1.8)


def said(*bars: Bar, is_strict: bool) -> str:
    out = io.StringIO()
    judge(bars, Console(file=out, width=200), is_strict=is_strict)
    return out.getvalue()


def test_a_line_gives_bar_figure_and_verdict() -> None:
    assert FAST.line() == "bar: choose: at most 20 us, measured 19 us: holds"
    assert SLOW.line() == "bar: choose: at most 20 us, measured 21 us: misses"
    assert GAIN.line() == "bar: gain: at least 1.8, measured 1.8: holds"
    assert not NONE.holds
    assert (SLOW.figures()["holds"], GAIN.figures()["least"]) == (False, 1.8)


def test_strict_fails_on_a_miss_alone() -> None:
    assert "2 of 2 bars hold" in said(FAST, GAIN, is_strict=True)
    assert "1 of 2 bars hold" in said(FAST, SLOW, is_strict=False)
    with pytest.raises(SystemExit) as caught:
        said(FAST, SLOW, is_strict=True)
    assert caught.value.code == 1


def test_a_bar_has_one_side_and_every_benchmark_both_options() -> None:
    with pytest.raises(ValueError, match="least"):
        Bar(name="x", measured=1.0)
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--strict", "--json", "f"])
    assert options.strict and str(options.json) == "f"


@pytest.mark.parametrize(
    ("given", "why"),
    [("missing/f.json", "there is no folder"), ("", "is a folder"), ("f.json/g", "no folder")],
)
def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, why: str
) -> None:
    (tmp_path / "f.json").touch()
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--json", str(tmp_path / given)])
    assert caught.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "many"])
def test_a_count_has_a_least(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=at_least(1))
    assert parser.parse_args(["--rounds", "1"]).rounds == 1
    with pytest.raises(SystemExit):
        parser.parse_args(["--rounds", given])
    assert "--rounds" in capsys.readouterr().err


def test_figures_that_are_no_numbers_are_null_in_the_file(tmp_path: Path) -> None:
    def refuse(token: str) -> None:
        raise AssertionError(token)

    path = tmp_path / "f.json"
    write_figures(path, {"rows": [{"a_s": float("nan")}], "pair": (1.0, float("inf"))}, [NONE])
    found = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    assert (found["rows"], found["pair"]) == ([{"a_s": None}], [1.0, None])
    assert (found["bars"][0]["measured"], found["bars"][0]["holds"]) == (None, False)
