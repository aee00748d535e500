"""A thread for what takes long beside the steps, so that no step of other requests waits for it."""

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from plait.errors import OverloadedError, PlaitError

WAITING_MAX: Final = 256

_Job = TypeVar("_Job")

JobDone = Callable[[PlaitError | None], None]
"""Called from the background thread, with None where all went well."""


class Background(Generic[_Job]):
    """Does one job after the other. The thread starts when it is needed and ends soon after
    `close`; what waits then is never answered.

    `do` may raise PlaitError, which its asker hears; any other exception is told as what `failed`
    makes of it. `name` is the thread's, `waiting` says what jobs are: "prompts wait for rows".
    """

    def __init__(
        self,
        do: Callable[[_Job], None],
        *,
        name: str,
        waiting: str,
        failed: Callable[[Exception], PlaitError],
    ) -> None:
        self._do = do
        self._name = name
        self._what_waits = waiting
        self._failed = failed
        self._waiting: queue.Queue[tuple[_Job, JobDone] | None] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self, job: _Job, done: JobDone) -> None:
        """Queue a job. Raises OverloadedError(reason="queue_full")."""
        try:
            self._waiting.put_nowait((job, done))
        except queue.Full:
            raise OverloadedError(
                f"{WAITING_MAX} {self._what_waits} already", reason="queue_full"
            ) from None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Idempotent; does not wait."""
        self._is_closed = True
        try:
            self._waiting.put_nowait(None)  # wakes an idle thread
        except queue.Full:  # it is not idle
            return

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end, after `close`."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_closed:
            asked = self._waiting.get()
            if asked is None or self._is_closed:
                return
            job, done = asked
            done(self._try(job))

    def _try(self, job: _Job) -> PlaitError | None:
        try:
            self._do(job)
        except PlaitError as error:
            return error
        except Exception as error:  # root: this request fails, the thread goes on
            return self._failed(error)
        return None
