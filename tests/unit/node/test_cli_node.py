"""What an owner types, and what he is shown."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import structlog
from rich.console import Console
from typer.testing import CliRunner

from node.ports import NodePhase, Progress
from plait.cli.node import app, parse_bytes
from plait.cli.node_view import NodeScreen
from plait.errors import ConfigError

RUN = CliRunner()


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """The command sends logs to the runner's standard error, which closes with it."""
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("512M", 512 << 20),
        ("1.5 GB", 3 << 29),
        ("400000000B", 400_000_000),
        ("1000", 1000),
        ("1t", 1 << 40),
    ],
)
def test_memory_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "0", "1PiB", "NaN", "1e9"])
def test_memory_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="2GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dtype", "int4"], "choose one of auto"),
        (["--device", "tpu"], "cuda:0"),
        (["--listen", "here"], "HOST:PORT"),
        (["--listen", "0.0.0.0:99999"], "HOST:PORT"),
        (["--memory", "much"], "2GiB"),
        (["--log-level", "loud"], "--log-level"),
        (["--drain-s", "inf"], "--drain-s"),
        ([], "plait token create"),
        (["--token", "nonsense"], "token"),
        (["plait1.AAAA"], "cut short"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    home = ["--home", str(tmp_path / "papers")]
    result = RUN.invoke(app, ["join", *arguments, *home], env={"PLAIT_TOKEN": ""})
    assert isinstance(result.exception, ConfigError)
    assert words in result.exception.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "no-such-host.invalid:0"], "--listen: this machine knows no address"),
        (["--listen", "203.0.113.7:0"], "--listen: 203.0.113.7 is not an address of this machine"),
        (["--advertise", "not a host"], "--advertise 'not a host'"),
        (["two words"], "'two words' is not an address"),
    ],
)
def test_addresses_are_looked_at_before_the_token_is_spent(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    home = ["--home", str(tmp_path / "papers"), "--token-file", str(token_file)]
    result = RUN.invoke(app, ["join", *arguments, *home], env={"PLAIT_TOKEN": ""})
    assert isinstance(result.exception, ConfigError)
    assert words in result.exception.message
    assert list(tmp_path.iterdir()) == []


def test_status_without_papers_says_how_to_join(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["status", "--home", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "plait node join" in result.exception.message


def shown(*steps: Progress) -> list[str]:
    """Lines on something that is no terminal."""
    console = Console(width=200, force_terminal=False, record=True, file=StringIO())
    with NodeScreen(console) as screen:
        for step in steps:
            screen.show(step)
    return console.export_text().splitlines()


def test_each_step_is_one_line_and_repeats_are_not() -> None:
    serving = Progress(phase=NodePhase.SERVING, detail="layers 0-9 of tiny")
    lines = shown(
        Progress(phase=NodePhase.CONNECTING, detail="host:1"),
        Progress(phase=NodePhase.ASSIGNED, detail="layers 0-9 of tiny ([it] fits)"),
        *[
            Progress(phase=NodePhase.LOADING, detail="loading layers", done=done / 100)
            for done in range(101)
        ],
        serving,
        serving,
    )
    assert lines == [
        "connecting to host:1",
        "assigned layers 0-9 of tiny ([it] fits)",
        "loading: loading layers 25%",
        "loading: loading layers 50%",
        "loading: loading layers 75%",
        "loading: loading layers 100%",
        "serving layers 0-9 of tiny",
    ]


def test_a_coordinator_that_stays_away_is_told_once_until_it_is_back() -> None:
    away = (
        Progress(phase=NodePhase.CONNECTING, detail="host:1"),
        Progress(phase=NodePhase.OFFLINE, detail="host:1: refused; trying again"),
    )
    back = Progress(phase=NodePhase.SERVING, detail="layers 0-9 of tiny")
    told = ["connecting to host:1", "offline: host:1: refused; trying again"]
    assert shown(*away, *away, *away, back, *away) == [*told, "serving layers 0-9 of tiny", *told]
