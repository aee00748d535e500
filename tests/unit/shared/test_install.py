"""The Makefile's installer names what takes long and nothing else."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "install.py"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  Downloading torch-2.9.0-cp311-cp311-manylinux.whl (899.8 MB)\n", "  torch (899.8 MB)"),
        (
            "Downloading https://x.example/a/nvidia_cublas-1-py3.whl (1.2 GB)\n",
            "  nvidia_cublas (1.2 GB)",
        ),
        ("  Downloading rich-15.0.0-py3-none-any.whl (310 kB)\n", None),
        ("  Downloading pygments-2.21.0-py3-none-any.whl (1.3 MB)\n", None),
        ("Installing collected packages: a, b\n", "  unpacking"),
        ("Collecting torch<2.14,>=2.6\n", None),
    ],
)
def test_only_large_downloads_are_told(line: str, words: str | None) -> None:
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.told(line) == words
