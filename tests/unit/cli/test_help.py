"""What `plait COMMAND --help` says at 80 columns, and what a wrong command line gets."""

import pytest
from typer.testing import CliRunner

from plait.cli.app import GROUPS, app
from plait.errors import InvalidRequestError

RUN = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})
SINGLE = ("demo", "coordinator", "ask", "chat", "status", "top", "plan", "simulate")


@pytest.mark.parametrize("name", GROUPS)
def test_every_command_explains_itself(name: str) -> None:
    result = RUN.invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: plait {name}" in result.output
    assert ("COMMAND [ARGS]" in result.output) is (name not in SINGLE)


@pytest.mark.parametrize(("name", "default"), [("ask", "the only"), ("coordinator", "SQLite")])
def test_defaults_in_words_are_shown(name: str, default: str) -> None:
    assert default in RUN.invoke(app, [name, "--help"]).output


def test_brackets_in_help_are_shown() -> None:
    """Rich would take them for its own markup."""
    assert "org/name[@revision]" in RUN.invoke(app, ["model", "pull", "--help"]).output
    assert "(the pool's)" in RUN.invoke(app, ["plan", "--help"]).output


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused(prompt: str) -> None:
    result = RUN.invoke(app, ["ask", prompt])
    assert isinstance(result.exception, InvalidRequestError)
    assert "the prompt is empty" in result.exception.message


def test_an_empty_standard_input_is_refused() -> None:
    result = RUN.invoke(app, ["ask", "-"], input="")
    assert isinstance(result.exception, InvalidRequestError)
