"""Ceilings of larger pools: no chain of any machines carries more than their prices."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from benchmarks._ceiling_proof import prove
from scheduler.planning.exact import BestChains
from scheduler.planning.ground import Wish
from scheduler.planning.pool import plan_pool
from tests.kit.examples import few_and_many
from tests.unit.scheduler.grounds import draw_ground, model

MODELS = (
    model(6, layer_mib=4400.0),
    model(20, layer_mib=1500.0),
    model(80),
    model(32, layer_mib=250.0),
)


@few_and_many(
    1,
    12,
    seed=st.integers(0, 10_000),
    num_nodes=st.integers(1, 6),
    at=st.integers(0, len(MODELS) - 1),
    machines_max=st.integers(1, 6),
    is_grouped=st.booleans(),
    is_narrow=st.booleans(),
    derandomize=True,
)
def test_no_chain_carries_more_than_the_prices_of_its_machines(
    seed: int, num_nodes: int, at: int, machines_max: int, is_grouped: bool, is_narrow: bool
) -> None:
    """Against the best chain of every set of machines, over all orders and splits."""
    ground = draw_ground(seed, num_nodes, MODELS[at])
    if is_grouped:
        machines = tuple(
            replace(m, curve=replace(m.curve, sync_s=1e-4, sync_row_s=2e-5), kv_bytes=None)
            for m in ground.machines
        )
        ground = replace(ground, machines=machines)
    if is_narrow:  # who has next to no uplink stands last
        machines = tuple(
            replace(m, up_bytes_per_s=m.up_bytes_per_s / (60 if i % 2 else 1))
            for i, m in enumerate(ground.machines)
        )
        ground = replace(ground, machines=machines)
    proof = prove(ground, machines_max=machines_max, rounds=4)
    chains = BestChains(ground, Wish())
    for size in range(1, num_nodes + 1):
        for members in itertools.combinations(range(num_nodes), size):
            best = chains.best(members, 0.0)
            if best is not None:
                assert best.rate <= sum(proof.prices[i] for i in members)


@pytest.mark.slow
def test_a_proof_is_near_what_a_plan_of_many_machines_carries() -> None:
    ground = draw_ground(7, 40)
    rate = plan_pool(ground, Wish()).rate_per_s
    assert rate <= prove(ground).most <= 1.35 * rate
