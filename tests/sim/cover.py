"""No layer stays without a node while there are enough nodes."""

from typing import TYPE_CHECKING, Final

from coordinator.core.machines import NodeState
from coordinator.core.state import CoreState
from plait.types import missing_spans

if TYPE_CHECKING:
    from tests.sim.fleet import Fleet

GRACE_MS: Final = 45_000
"""Noticing, planning, loading up to 4 s, twice where a load fails; and a repair may have to wait
for the last one to be 30 s old."""

SPARE: Final = 2.0
"""Enough nodes: those that are attached and well could hold the model so many times."""


class Cover:
    """Since when layers have been missing though nodes sufficed."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._since_ms: int | None = None
        self.num_missing_s = 0
        self.num_looks = 0

    def start_over(self) -> None:
        """A new coordinator knows no node yet."""
        self._since_ms = None

    def look(self, state: CoreState) -> None:
        """Once a second."""
        fleet, now_ms = self._fleet, self._fleet.clock.now_ms
        self.num_looks += 1
        num_layers = fleet.spec.num_layers
        held = [n.held.span for n in state.nodes.values() if n.held is not None]
        if not missing_spans(held, num_layers):
            self._since_ms = None
            return
        self.num_missing_s += 1
        if self._num_layers(state) < SPARE * num_layers:
            self._since_ms = None
            return
        if self._since_ms is None:
            self._since_ms = now_ms
        waited_ms = now_ms - self._since_ms
        assert waited_ms <= GRACE_MS, (
            f"layers missing for {waited_ms} ms: {missing_spans(held, num_layers)}"
        )

    def _num_layers(self, state: CoreState) -> int:
        """What nodes that are well and have been here for a while could hold, at the least."""
        machines = self._fleet.machines
        return sum(
            machines[n.node_id].layers_max
            for n in state.nodes.values()
            if n.profile is not None and n.state is not NodeState.DRAINING and n.num_failures == 0
        )
