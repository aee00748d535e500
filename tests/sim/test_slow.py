"""A node that becomes slow for a while is left, and comes back by itself."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.types import NodeId
from tests.sim.fleet import Fleet
from tests.sim.fleet_faults import FleetFaults
from tests.unit.scheduler.pools import node

SLOW_AT_S, WELL_AT_S, END_S = 40, 100, 340
SHUNNED_S, BACK_S = 25, 180


class Watched(Fleet):
    """Knows where requests went, and when."""

    def __init__(self, num_requests: int) -> None:
        self.opened: list[tuple[int, NodeId]] = []
        super().__init__(
            1,
            num_requests=num_requests,
            duration_ms=END_S * 1_000,
            num_layers=12,
            faults=FleetFaults(),
            profiles=[node(name, memory_mib=200) for name in ("a", "b")],
        )

    def note(self, event: ev.Event, effects: Sequence[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.OpenRoute):
                self.opened.append((self.clock.now_ms // 1_000, effect.route[0].node_id))
        super().note(event, effects)

    def went(self, from_s: int, to_s: int) -> Counter[str]:
        """Requests by node."""
        return Counter(node_id for at_s, node_id in self.opened if from_s <= at_s < to_s)


def test_a_node_that_was_ten_times_slower_for_a_minute_is_left_and_used_again() -> None:
    fleet = Watched(num_requests=150)
    slow = fleet.machines[NodeId("a")]
    for at_s, slowness in ((SLOW_AT_S, 10.0), (WELL_AT_S, 1.0)):
        fleet.clock.after(at_s * 1_000, partial(setattr, slow, "slowness", slowness))
    fleet.run()
    assert set(fleet.outcomes) == {"length"}
    before, after = fleet.went(0, SLOW_AT_S), fleet.went(WELL_AT_S + BACK_S, END_S)
    for counts in (before, after):
        assert 2 * counts["a"] >= counts["b"] and 2 * counts["b"] >= counts["a"], (before, after)
    assert fleet.went(SLOW_AT_S + SHUNNED_S, WELL_AT_S).keys() == {"b"}
