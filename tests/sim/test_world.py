"""Whole networks in virtual time, under faults that each seed draws anew."""

import subprocess
import sys

import pytest

from tests.sim.faults import Faults
from tests.sim.world import World


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 12))]
)
def test_a_small_network_survives_its_faults(seed: int) -> None:
    world = World(seed)
    world.run(80_000)
    world.heal_and_finish()


def test_without_faults_every_request_is_answered() -> None:
    world = World(99, faults=Faults())
    world.run(80_000)
    world.heal_and_finish()
    assert set(world.witness.outcomes) == {"length"}


@pytest.mark.slow
def test_the_same_seed_is_the_same_run() -> None:
    digests = []
    for _ in range(2):
        world = World(7)
        world.run(40_000)
        digests.append(world.digest.hexdigest())
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from tests.sim.fleet import Fleet\n"
        "from tests.sim.test_fleet import CHURN\n"
        "fleet = Fleet(5, num_nodes=12, num_requests=20, duration_ms=20_000, faults=CHURN)\n"
        "fleet.run()\n"
        "print(fleet.num_events, fleet.digest.hexdigest(), fleet.outcomes)\n"
        "from tests.sim.world import World\n"
        "world = World(5)\n"
        "world.run(25_000)\n"
        "print(world.num_events, world.digest.hexdigest())\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(answers) == 1
