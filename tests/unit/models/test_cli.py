"""The command without the packages it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("missing", ["gguf", "numpy", "huggingface_hub"])
def test_a_plain_installation_says_what_to_install(tmp_path: Path, missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "sys.argv = ['plait', 'model', 'list']\n"
        "from plait.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PLAIT_MODELS": str(tmp_path), "COLUMNS": "200"},
    )
    assert done.returncode == 1
    assert "pip install '.[models]'" in done.stderr
    assert "Traceback" not in done.stderr
