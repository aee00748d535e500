"""A thread that brings rows of remote weights, so that no step of other requests waits for them."""

import queue
import threading
from collections.abc import Callable
from typing import Final

from plait.errors import OverloadedError, PlaitError, WeightsError

WAITING_MAX: Final = 256

FetchDone = Callable[[PlaitError | None], None]
"""Called from the fetcher's thread, with None where all went well."""


class RowFetcher:
    """Calls `fetch` with the ids of one request after the other. The thread starts when it is
    needed and ends soon after `close`; what waits then is never answered.

    A fetch ends by itself: its own time limits and tries are those of `plait.models.http_ranges`.
    """

    def __init__(self, fetch: Callable[[list[int]], None]) -> None:
        self._fetch = fetch
        self._waiting: queue.Queue[tuple[list[int], FetchDone] | None] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self, token_ids: list[int], done: FetchDone) -> None:
        """Queue a fetch. Raises OverloadedError(reason="queue_full")."""
        try:
            self._waiting.put_nowait((token_ids, done))
        except queue.Full:
            raise OverloadedError(
                f"{WAITING_MAX} prompts wait for embedding rows already", reason="queue_full"
            ) from None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="plait-rows", daemon=True)
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
            token_ids, done = asked
            done(self._try(token_ids))

    def _try(self, token_ids: list[int]) -> PlaitError | None:
        try:
            self._fetch(token_ids)
        except PlaitError as error:
            return error
        except Exception as error:  # root: this request fails, the thread goes on
            return WeightsError(
                f"embedding rows could not be fetched: {type(error).__name__}: {error}",
                reason="weights_unavailable",
            )
        return None
