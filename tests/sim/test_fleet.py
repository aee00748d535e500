"""Whole fleets in virtual time, under faults that each seed draws anew; a thousand by hand with
`python -m tests.sim.seeds`."""

import pytest

from tests.sim.fleet import Fleet
from tests.sim.fleet_faults import FleetFaults

CHURN = FleetFaults(
    leave_per_s=0.02,
    drains=0.3,
    is_noticed=0.5,
    freeze_per_s=0.01,
    control_drop_per_s=0.01,
    gateway_drop_per_s=0.01,
    link_drop_per_s=0.02,
    partition_per_s=0.002,
    one_way=0.5,
    restart_per_s=0.05,
    client_breaks=0.3,
    client_leaves=0.1,
)


def test_without_faults_every_request_is_answered() -> None:
    fleet = Fleet(1, num_nodes=16, num_requests=20, duration_ms=30_000, faults=FleetFaults())
    fleet.run()
    fleet.heal_and_finish()
    assert set(fleet.outcomes) == {"length"}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_all_faults_at_once_change_no_token_and_leave_nothing_behind(seed: int) -> None:
    fleet = Fleet(seed, num_nodes=20, num_requests=40, duration_ms=60_000, faults=CHURN)
    fleet.run()
    assert fleet.num_restarts
    fleet.heal_and_finish()
    assert fleet.outcomes["length"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_fleet_survives_the_faults_that_its_seed_draws(seed: int) -> None:
    fleet = Fleet(seed, num_nodes=50, num_requests=40, duration_ms=120_000, num_layers=20)
    fleet.run()
    fleet.heal_and_finish()


@pytest.mark.slow
def test_bulk_never_overtakes_the_opening_that_was_sent_before_it() -> None:
    """A seed that failed: rows came before their session, and were waited for in vain."""
    fleet = Fleet(185, num_nodes=20, num_requests=60, duration_ms=120_000, num_layers=12)
    fleet.run()
    fleet.heal_and_finish()
