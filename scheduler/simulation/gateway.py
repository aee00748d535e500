"""The gateway's own work for each request: one event loop that all of them share."""

from typing import Final

from scheduler.simulation.state import Request

EPSILON: Final = 1e-9


class Gateway:
    """A server whose time is shared evenly (egalitarian processor sharing; Kleinrock, 1967): n
    requests of equal work that come at once all leave after n times as long as one alone."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s
        self._served_s = 0.0
        self._at_s = 0.0
        self._inside: list[tuple[float, Request, int]] = []

    def admit(self, request: Request, now_s: float) -> None:
        """A request begins, in its present epoch."""
        self._advance(now_s)
        self._inside.append((self._served_s + self._work_s, request, request.epoch))

    def next_s(self) -> float | None:
        """When the next one is through, if none comes before; None where nobody is inside."""
        if not self._inside:
            return None
        return self._at_s + max(0.0, self._inside[0][0] - self._served_s) * len(self._inside)

    def through(self, now_s: float) -> list[Request]:
        """Those that are through by now and whose epoch is still the same."""
        self._advance(now_s)
        found: list[Request] = []
        while self._inside and self._inside[0][0] <= self._served_s + EPSILON:
            _, request, epoch = self._inside.pop(0)
            if request.epoch == epoch:
                found.append(request)
        return found

    def _advance(self, now_s: float) -> None:
        if self._inside:
            self._served_s += (now_s - self._at_s) / len(self._inside)
        self._at_s = now_s
