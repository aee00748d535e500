"""Who moved or came lately: hysteresis in time."""

from collections.abc import Iterable
from typing import Final

from scheduler.planning.repair.result import Repaired

INTERVAL_S: Final = 600.0


class Damper:
    """Nodes rest for `interval_s` after a move or their arrival; see `Standing.resting`."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._since_s: dict[str, float] = {}

    def came(self, node_ids: Iterable[str], now_s: float) -> None:
        """Nodes joined."""
        self._since_s.update((node_id, now_s) for node_id in node_ids)

    def moved(self, repaired: Repaired, now_s: float) -> None:
        """A repair is being carried out."""
        self.came((move.node_id for move in repaired.moves), now_s)

    def resting(self, now_s: float) -> frozenset[str]:
        """Whom only a broken chain may move now; forgets the others."""
        least_s = now_s - self._interval_s
        self._since_s = {n: since_s for n, since_s in self._since_s.items() if since_s > least_s}
        return frozenset(self._since_s)
