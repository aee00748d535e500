"""Handing events to the core from code that can neither wait nor fail."""

import asyncio
from collections import deque
from typing import Final

from coordinator.core.events import Event
from coordinator.ports import Inbox
from plait.errors import OverloadedError
from plait.log import get

UNPOSTED_MAX: Final = 10_000
REPOST_S: Final = 0.05

log = get("relay")


class Poster:
    """Posts in order; what a full inbox refuses is kept, and posted a moment later."""

    def __init__(self, inbox: Inbox, *, unposted_max: int = UNPOSTED_MAX) -> None:
        self._inbox = inbox
        self._unposted: deque[Event] = deque()
        self._unposted_max = unposted_max
        self.num_lost = 0

    def post(self, event: Event) -> None:
        """Never blocks, never raises; beyond `unposted_max` events are lost and counted."""
        if not self._unposted:
            try:
                self._inbox.post(event)
            except OverloadedError:
                asyncio.get_running_loop().call_later(REPOST_S, self._repost)
            else:
                return
        if len(self._unposted) >= self._unposted_max:
            self.num_lost += 1
            log.error("event_lost", kind=type(event).__name__)
            return
        self._unposted.append(event)

    def _repost(self) -> None:
        while self._unposted:
            try:
                self._inbox.post(self._unposted[0])
            except OverloadedError:
                asyncio.get_running_loop().call_later(REPOST_S, self._repost)
                return
            self._unposted.popleft()
