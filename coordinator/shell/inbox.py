"""The bounded way into the core. Under pressure it sheds new work before it loses an ending."""

import asyncio
from collections import deque
from typing import Final

from coordinator.core import events as ev
from plait.errors import OverloadedError

SHEDDABLE: Final = (
    ev.NodeAttached,
    ev.NodeReported,
    ev.NodeLoadProgressed,
    ev.NeighbourMeasured,
    ev.RequestSubmitted,
    ev.ReplanAsked,
    ev.KeyWeighed,
)
"""Events whose sender can try again, or whose successor says the same."""


class EventInbox:
    """Implements `coordinator.ports.Inbox`; one reader, many writers, all on one event loop.

    New work is refused at `events_max`. Endings (detached, broke, drained, cancelled, solved) have
    as much room again, which the number of open streams and requests bounds.
    """

    def __init__(self, *, events_max: int = 10_000) -> None:
        self._events_max = events_max
        self._events: deque[ev.Event] = deque()
        self._arrived = asyncio.Event()
        self.num_refused = 0

    def __len__(self) -> int:
        return len(self._events)

    def post(self, event: ev.Event) -> None:
        """Hand in one event; never blocks. Raises OverloadedError when the inbox is full."""
        is_sheddable = isinstance(event, SHEDDABLE)
        limit = self._events_max if is_sheddable else 2 * self._events_max
        if len(self._events) >= limit:
            self.num_refused += 1
            raise OverloadedError(
                f"the coordinator is busy: {len(self._events)} events wait; try again in a second",
                reason="coordinator_busy",
            )
        self._events.append(event)
        self._arrived.set()

    async def take(self, *, num_max: int, wait_ms: int | None) -> list[ev.Event]:
        """Up to `num_max` events in order; empty when none came within `wait_ms` (None: ever)."""
        if not self._events:
            self._arrived.clear()
            try:
                async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return [self._events.popleft() for _ in range(min(num_max, len(self._events)))]
