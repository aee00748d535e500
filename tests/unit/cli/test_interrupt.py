"""Ctrl-C while the command is still being loaded: quiet, and the exit code says so."""

import subprocess
import sys

import pytest

PRESS = """
import os, signal, sys

class PressedAt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, PressedAt())
sys.argv = ["plait", *ARGUMENTS]
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("plait.cli.app", ("--help",)),
        ("typer", ("ask", "hi")),
        ("plait.sdk", ("ask", "hi")),
    ],
)
def test_an_early_ctrl_c_is_quiet(module: str, arguments: tuple[str, ...]) -> None:
    names = f"MODULE = {module!r}; ARGUMENTS = {arguments!r}"
    program = f"{names}{PRESS}from plait.cli.main import main\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
