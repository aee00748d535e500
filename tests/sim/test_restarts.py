"""Coordinators that lose power, hundreds of nodes that come back at once, clocks that are set."""

from dataclasses import replace
from random import Random

import pytest

from coordinator.core.core import Core
from tests.sim.fleet import LIMITS, Fleet
from tests.sim.fleet_faults import FleetFaults


def powerless(num_nodes: int, *, at_ms: int, until_ms: int) -> Fleet:
    """Without any other fault."""
    fleet = Fleet(
        3, num_nodes=num_nodes, num_requests=6, duration_ms=until_ms, faults=FleetFaults()
    )
    fleet.clock.after(at_ms, fleet.crash)
    return fleet


def test_a_journal_that_lost_its_tail_replays_to_what_was_done() -> None:
    fleet = powerless(12, at_ms=40_000, until_ms=50_000)
    fleet.run()
    assert fleet.num_restarts == 1
    assert fleet.disk.num_kept > 100
    assert fleet.disk.num_lost > 0


def test_a_replay_that_does_something_else_is_objected_to() -> None:
    fleet = powerless(12, at_ms=10**9, until_ms=40_000)
    fleet.run()
    another = replace(LIMITS, solve_debounce_ms=1)
    with pytest.raises(AssertionError, match="does something else"):
        fleet.disk.lose_power(lambda: Core((fleet.spec,), another, Random(0)), 10**9)


def test_what_was_flushed_of_sessions_is_told_to_the_next_coordinator() -> None:
    fleet = powerless(12, at_ms=40_000, until_ms=60_000)
    machine = next(iter(fleet.machines.values()))
    fleet.clock.after(20_000, lambda: machine.kill(is_noticed=True, back_ms=100_000))
    fleet.run()
    assert fleet.num_restarts == 1
    assert fleet.room is not None
    assert len(fleet.room.core.state.lifetimes) == 1


def test_machines_whose_clocks_are_wrong_and_are_set_serve_as_others() -> None:
    """None of them is within the minute that tickets allow."""
    hour_ms = 3_600_000
    faults = FleetFaults(clock_offset_ms=hour_ms, clock_jump_per_s=0.2, clock_jump_ms=hour_ms)
    fleet = Fleet(1, num_nodes=12, num_requests=20, duration_ms=40_000, faults=faults)
    for machine in fleet.machines.values():
        machine.wall.jump(2 * hour_ms)
    fleet.clock.after(20_000, lambda: fleet.wall.jump(-hour_ms))
    fleet.run()
    fleet.heal_and_finish()
    assert set(fleet.outcomes) == {"length"}
    assert max(fleet.epochs.values()) == 1, "no ticket was refused"


@pytest.mark.slow
def test_two_hundred_nodes_that_reconnect_at_once_are_back_in_half_a_minute() -> None:
    fleet = powerless(200, at_ms=40_000, until_ms=80_000)
    fleet.run()
    assert fleet.num_restarts == 1
    assert len(fleet.witness.incarnation) == 200
