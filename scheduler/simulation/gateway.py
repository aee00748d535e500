"""The gateway's own work for each request: one event loop that takes them as they come."""

from collections import deque
from typing import Final

from scheduler.simulation.state import Request

EPSILON: Final = 1e-9


class Gateway:
    """A server that takes one request after the other: of n that come at once the first leaves
    after as long as one alone, the last after n times as long. So their prompts reach the first
    stage one by one, and the first is under way before the others come."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s
        self._free_s = 0.0
        self._inside: deque[tuple[float, Request, int]] = deque()

    def admit(self, request: Request, now_s: float) -> None:
        """A request begins, in its present epoch."""
        self._free_s = max(self._free_s, now_s) + self._work_s
        self._inside.append((self._free_s, request, request.epoch))

    def next_s(self) -> float | None:
        """When the next one is through; None where nobody is inside."""
        return self._inside[0][0] if self._inside else None

    def through(self, now_s: float) -> list[Request]:
        """Those that are through by now and whose epoch is still the same."""
        found: list[Request] = []
        while self._inside and self._inside[0][0] <= now_s + EPSILON:
            _, request, epoch = self._inside.popleft()
            if request.epoch == epoch:
                found.append(request)
        return found
