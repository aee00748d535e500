"""Shared by all tests. In CI the property tests draw the same examples every time, so that a change
is judged by what it changes; at a desk they search on."""

import gc
import os
import signal

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

_TOGETHER = ("tests/integration/smollm",)
"""Packages of which one process runs all files."""

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

# What is imported and collected is no garbage; it is frozen below.
gc.disable()
_YOUNG = 20_000
"""Objects between two collections: searches make many, and hardly any in a circle."""

# As many processes as processors run tests; each computes in one thread, and so do those it starts.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# None of them decodes for so long that huge pages would pay.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")

# Nor does any of them have to know this machine's speed well.
os.environ.setdefault("PLAIT_MEASURE_S", "0.1")

# A shell that runs tests in the background ignores Ctrl-C for all that it starts, and so would the
# processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Together(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, but that files of one package share its network."""

    def _split_scope(self, nodeid: str) -> str:
        folder, _, _ = nodeid.partition("/test_")
        return folder if folder in _TOGETHER else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """None leaves it to the command line's own."""
    return _Together(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are not chosen by their marks, those on many examples try the few as well."""
    if not config.option.markexpr:
        few = [item for item in items if item.get_closest_marker("few")]
        config.hook.pytest_deselected(items=few)
        items[:] = [item for item in items if item not in few]


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no collection of garbage looks through it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
    gc.enable()
