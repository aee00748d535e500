"""A child of `plait demo` stops when its parent is gone, even a parent that was killed outright."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NoReturn

LIFELINE: Final = "PLAIT_LIFELINE"
HELD: Final = "PLAIT_LIFELINE_HELD"
"""Set while a lifeline is held; means nothing to children."""
GRACE_S: Final = 10.0


def hold_on() -> None:
    """Where the parent asked for it: watch standard input, a pipe whose other end it holds.

    When that ends, stop in order, and outright after GRACE_S. The request is not handed on to
    children of our own.
    """
    if os.environ.pop(LIFELINE, None):
        os.environ[HELD] = "1"
        threading.Thread(target=_watch, args=(0, _stop), name="lifeline", daemon=True).start()


def start_anew() -> NoReturn:
    """This same process, number and all, begins again with its arguments and what its environment
    is by now; a lifeline is held on to."""
    if os.environ.pop(HELD, None):
        os.environ[LIFELINE] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _watch(descriptor: int, stop: Callable[[], None]) -> None:
    """Block until the other end is closed, then stop."""
    while os.read(descriptor, 4096):
        pass
    stop()


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
