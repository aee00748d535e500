"""A node begins anew once, with huge pages, and leaves an owner's own choice alone."""

import os
import subprocess
import sys

import pytest

from plait.cli.huge_pages import ARENAS, ASKED, CHOICE, TUNABLES, libc_version, tuned

GLIBC = "glibc 2.36"


@pytest.mark.parametrize(
    ("present", "libc", "expected"),
    [
        ("", GLIBC, ASKED),
        ("glibc.malloc.check=1", GLIBC, f"glibc.malloc.check=1:{ASKED}"),
        (ASKED, GLIBC, None),
        (f"{CHOICE}=0", GLIBC, None),
        (f"{ARENAS}=2", GLIBC, f"{ARENAS}=2:{CHOICE}=1"),
        ("", "glibc 2.34", None),
        ("", "glibc 3.0", ASKED),
        ("", "", None),
        ("", "musl 1.2", None),
    ],
)
def test_what_the_c_library_is_told(present: str, libc: str, expected: str | None) -> None:
    assert tuned({TUNABLES: present}, libc) == expected


def begun(**environment: str) -> list[str]:
    """What a program prints that asks for huge pages at its beginning: how it is told, each time
    that it begins, and its number."""
    code = (
        "import os; print(os.getpid(), os.environ.get('GLIBC_TUNABLES'))\n"
        "from plait.cli.huge_pages import use_huge_pages; use_huge_pages(); print('goes on')"
    )
    kept = {name: value for name, value in os.environ.items() if name != TUNABLES}
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.splitlines()


@pytest.mark.skipif(tuned({}, libc_version()) is None, reason="no glibc that knows of huge pages")
def test_the_same_process_begins_once_more() -> None:
    first, second, last = begun()
    pid, told = first.split()
    assert told == "None" and second == f"{pid} {ASKED}" and last == "goes on"


def test_who_has_chosen_goes_on() -> None:
    (first, last) = begun(**{TUNABLES: f"{CHOICE}=0"})
    assert first.endswith("=0") and last == "goes on"
