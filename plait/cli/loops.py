"""The event loop of a process that hands frames on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`, on uvloop where it is installed: a frame wakes the loop several times, and
    it does so with less Python (decision 200)."""
    try:
        import uvloop
    except ImportError:  # Windows has none
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
