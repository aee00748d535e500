"""What solvers print from C, which knows nothing of Python's streams."""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def solver_output_to_stderr() -> Iterator[None]:
    """Standard output is for the answer: in the block, what is written to it goes to standard
    error. HiGHS's banner goes nowhere."""
    hush_banner()
    with _descriptor_1(2):
        yield


def hush_banner() -> None:
    """HiGHS prints its licence when a process makes its first model: make that one now, unheard.
    What it says later, as of an error, is heard. Nothing where it is not installed."""
    if importlib.util.find_spec("highspy") is None:
        return
    with open(os.devnull, "wb") as nowhere, _descriptor_1(nowhere.fileno()):
        importlib.import_module("highspy").Highs()


@contextlib.contextmanager
def _descriptor_1(target: int) -> Iterator[None]:
    """Descriptor 1 is a copy of `target` in the block."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(target, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
