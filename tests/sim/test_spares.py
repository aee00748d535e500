"""A spare that takes a lost node's place still stands in for the others."""

from plait.types import NodeId
from tests.sim.fleet import Fleet
from tests.sim.fleet_faults import FleetFaults
from tests.unit.scheduler.pools import node

AWAY_MS = 10**9


def test_a_spare_that_became_a_stage_stands_in_for_the_next_node_that_is_lost() -> None:
    """Three nodes of a chain, and a slow one with room for the whole model. Two of the three die,
    the second one long after the repair that the first one caused."""
    chain = [node(name, memory_mib=66) for name in ("a", "b", "c")]
    spare = node("spare", memory_mib=120, layer_ms=6.0)
    fleet = Fleet(
        1,
        num_requests=8,
        duration_ms=110_000,
        num_layers=12,
        faults=FleetFaults(),
        profiles=(*chain, spare),
    )
    fleet.run(20_000)
    num_missing_s = fleet.cover.num_missing_s  # until all had loaded
    fleet.machines[NodeId("a")].kill(is_noticed=True, back_ms=AWAY_MS)
    fleet.run(60_000)
    assert fleet.room is not None
    plan = fleet.room.core.state.planning.in_force
    assert plan is not None and plan.pipelines == (("spare", "b", "c"),)
    fleet.machines[NodeId("b")].kill(is_noticed=True, back_ms=AWAY_MS)
    fleet.run()
    assert fleet.cover.num_missing_s == num_missing_s
    assert set(fleet.outcomes) == {"length"}
