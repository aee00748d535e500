"""A node's memory in huge pages. A step reads every weight, and in pages of 4 KiB has to look up
where each thousand of them lies; glibc asks Linux for pages of 2 MiB where it is told to before a
program begins (decision 197)."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from plait.cli.lifeline import start_anew

TUNABLES: Final = "GLIBC_TUNABLES"
CHOICE: Final = "glibc.malloc.hugetlb"
HUGE: Final = f"{CHOICE}=1"
ARENAS: Final = "glibc.malloc.arena_max"
ASKED: Final = f"{HUGE}:{ARENAS}=1"
"""One arena: what others grow by is in small pages whatever is asked, and weights are read in a
thread that would have one of its own."""
SMALL: Final = f"{CHOICE}=0"
"""Quicker to fill, for who does not stay long."""
GLIBC_MIN: Final = (2, 35)


def use_huge_pages() -> None:
    """This same process, number and all, begins again with huge pages, unless it has them or its
    owner has chosen otherwise; returns where it need not or cannot. Before anything is loaded."""
    tunables = tuned(os.environ, libc_version())
    if tunables is None or not sys.executable or len(sys.orig_argv) < 2:
        return
    os.environ[TUNABLES] = tunables
    start_anew()


def tuned(environment: Mapping[str, str], libc: str) -> str | None:
    """What glibc is to be told with what it is told already; None: it is, or it cannot. `libc` is
    its name and version, as confstr(3) has them."""
    name, _, version = libc.partition(" ")
    present = environment.get(TUNABLES, "")
    if name != "glibc" or _numbers(version) < GLIBC_MIN or CHOICE in present:
        return None
    asked = HUGE if ARENAS in present else ASKED
    return f"{present}:{asked}" if present else asked


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def libc_version() -> str:
    """Its name and version; empty where it is not known."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""  # no glibc, or no such call
