"""What an owner may type behind `plait node`; each of these words is in the documentation."""

import pytest
from typer.testing import CliRunner

from plait.cli.app import app

WORDS = ("join", "keep", "status", "drain", "pause", "resume", "doctor", "install", "uninstall")


@pytest.mark.parametrize("word", WORDS)
def test_a_command_explains_itself(word: str) -> None:
    assert CliRunner().invoke(app, ["node", word, "--help"]).exit_code == 0
