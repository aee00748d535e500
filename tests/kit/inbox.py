"""The one in-memory way into a core."""

from coordinator.core.events import Event
from plait.errors import OverloadedError


class ListInbox:
    """Keeps what it gets; refuses while `is_full`."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.events: list[Event] = []
        self.is_full = is_full

    def post(self, event: Event) -> None:
        if self.is_full:
            raise OverloadedError("full")
        self.events.append(event)

    def take(self) -> list[Event]:
        """What came since the last time."""
        taken, self.events = self.events, []
        return taken
