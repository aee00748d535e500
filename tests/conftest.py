"""Shared by all tests. In CI the property tests draw the same examples every time, so that a change
is judged by what it changes; at a desk they search on."""

import gc
import os
import signal
from collections.abc import Iterator
from itertools import zip_longest

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from plait.cli.huge_pages import SMALL, TUNABLES

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
os.environ.setdefault(TUNABLES, SMALL)

# Nor does any of them have to know this machine's speed well.
os.environ.setdefault("PLAIT_MEASURE_S", "0.1")

# A shell that runs tests in the background ignores Ctrl-C for all that it starts, and so would the
# processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _unit(nodeid: str) -> str:
    """What stays on one process: a file, or a package that shares a network."""
    folder, _, _ = nodeid.partition("/test_")
    return folder if folder in _TOGETHER else nodeid.split("::", 1)[0]


class _Together(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, but that files of one package share its network."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """None leaves it to the command line's own."""
    return _Together(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are not chosen by their marks, those on many examples try the few as well."""
    if not config.option.markexpr:
        few = [item for item in items if item.get_closest_marker("few")]
        config.hook.pytest_deselected(items=few)
        items[:] = [item for item in items if item not in few]
    items[:] = _mixed(items)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files that wait for processes take turns with files that compute: one process's test waits
    while another's computes. The short ones come last, as before."""
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(_unit(item.nodeid), []).append(item)
    waiting = [unit for unit in units if unit.startswith("tests/integration/")]
    short = [unit for unit in units if unit.startswith("tests/unit/")]
    computing = [unit for unit in units if unit not in (*waiting, *short)]
    turns = zip_longest(waiting, computing)
    order = [unit for turn in turns for unit in turn if unit is not None]
    return [item for unit in (*order, *short) for item in units[unit]]


def pytest_collection_finish() -> None:
    """Garbage is looked for from here on; what little there is by now stays."""
    gc.freeze()
    gc.set_threshold(_YOUNG)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What lives when a file's tests have ended has been imported or is remembered for good. After
    thousands of tests one look for garbage took two seconds, and an engine asks for one whenever
    it lets a span go."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        _keep()


def _keep() -> None:
    """No collection of garbage looks through what there is once more."""
    gc.collect()
    gc.freeze()
