"""Says on the terminal why an answer does not come, while it does not come."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from plait.sdk import Waiting

LOOK_S: Final = 0.3
PATIENCE: Final = 3
"""Looks that a wait must last to be told: a request queues for a moment before every answer."""


class Answer(Protocol):
    """What is asked for its wait: a stream of the SDK."""

    @property
    def waiting(self) -> "Waiting | None": ...


@contextmanager
def told_waits(
    answer: Answer, tell: Callable[[str], None], *, look_s: float = LOOK_S
) -> Iterator[None]:
    """Within the block, call `tell` from another thread with each reason of a longer wait, once."""
    is_over = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(answer, tell, is_over, look_s), name="waiting", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()


def _watch(
    answer: Answer, tell: Callable[[str], None], is_over: threading.Event, look_s: float
) -> None:
    told, num_looks = "", 0
    while not is_over.wait(look_s):
        waiting = answer.waiting
        if waiting is None:
            told, num_looks = "", 0
            continue
        num_looks += 1
        message = waiting.message or waiting.reason
        if num_looks >= PATIENCE and message != told:
            told = message
            tell(message)
