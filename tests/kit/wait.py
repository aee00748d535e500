"""Waiting on conditions with a deadline: never a fixed sleep."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

POLL_S: Final = 0.005


async def until(
    condition: Callable[[], bool], *, timeout_s: float = 5.0, what: str = "the condition"
) -> None:
    """Return as soon as `condition()` holds. Raises TimeoutError naming `what`."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - conditions of strangers carry no event
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TimeoutError(f"{what} did not come true within {timeout_s:g} s") from None


def until_sync(
    condition: Callable[[], bool],
    *,
    timeout_s: float = 5.0,
    poll_s: float = 0.02,
    what: str = "the condition",
) -> None:
    """`until` for code without an event loop."""
    deadline_s = time.perf_counter() + timeout_s
    while not condition():
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"{what} did not come true within {timeout_s:g} s")
        time.sleep(poll_s)
