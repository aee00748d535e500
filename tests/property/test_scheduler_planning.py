"""Plans against exhaustive search, prices and flows against naive twins, on random pools."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.ceiling import ceiling
from plait.errors import UnavailableError
from scheduler.planning.check import pool_violations
from scheduler.planning.cluster import placement_flow
from scheduler.planning.cluster_plan import plan_cluster
from scheduler.planning.ground import Ground, Replica, Wish, replica_figures
from scheduler.planning.pool import plan_pool
from scheduler.planning.price import FINE, rates
from scheduler.planning.table import make_table
from tests.kit.examples import few_and_many
from tests.unit.scheduler.grounds import cluster, draw_ground, model

SHORT = model(6, layer_mib=4400.0)
"""Six layers, two on a small node: few enough splits to try them all."""


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, total), parts - 1):
        edges = (0, *cuts, total)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def best_rates(ground: Ground) -> dict[frozenset[int], float]:
    """The best chain of every set of machines, over all orders and splits."""
    table = make_table(ground)
    best: dict[frozenset[int], float] = {}
    for size in range(1, min(len(ground.machines), ground.num_layers) + 1):
        for group in itertools.combinations(range(len(ground.machines)), size):
            options = list(
                itertools.product(itertools.permutations(group), splits(ground.num_layers, size))
            )
            order = np.array([o for o, _ in options], dtype=np.int64)
            counts = np.array([k for _, k in options], dtype=np.int64)
            found, _ = rates(table, order, counts, tpot_s_max=math.inf, halvings=FINE)
            best[frozenset(group)] = float(found.max())
    return best


def exhaustive(ground: Ground) -> float:
    """The best partition of the machines into chains and idle ones."""
    best = best_rates(ground)
    known: dict[frozenset[int], float] = {}

    def value(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        if left not in known:
            first, *others = sorted(left)
            top = value(left - {first})
            for size in range(len(others) + 1):
                for rest in itertools.combinations(others, size):
                    group = frozenset((first, *rest))
                    if best.get(group, 0.0) > 0.0:
                        top = max(top, best[group] + value(left - group))
            known[left] = top
        return known[left]

    return value(frozenset(range(len(ground.machines))))


@few_and_many(6, 25, seed=st.integers(0, 10_000), num_nodes=st.integers(1, 6), derandomize=True)
def test_small_pools_are_planned_as_well_as_exhaustive_search(seed: int, num_nodes: int) -> None:
    ground = draw_ground(seed, num_nodes, SHORT)
    best = exhaustive(ground)
    try:
        plan = plan_pool(ground, Wish())
    except UnavailableError:
        assert best == 0.0
        return
    assert pool_violations(ground, plan) == []
    assert plan.rate_per_s >= best * 0.9999
    assert plan.bound_per_s >= plan.rate_per_s


@few_and_many(4, 10, seed=st.integers(0, 10_000), num_nodes=st.integers(2, 5), derandomize=True)
def test_groups_and_unsteady_nodes_are_planned_as_well_as_exhaustive_search(
    seed: int, num_nodes: int
) -> None:
    uneven = uneven_ground(seed, num_nodes)
    best = exhaustive(uneven)
    if best > 0.0:
        plan = plan_pool(uneven, Wish())
        assert pool_violations(uneven, plan) == []
        assert plan.rate_per_s >= best * 0.9999


def test_a_stage_that_cannot_keep_up_is_no_place_for_further_layers() -> None:
    uneven = uneven_ground(4807, 2)
    (chain,) = plan_pool(uneven, Wish()).chains
    assert (chain.members, chain.counts) == ((0, 1), (4, 2))
    assert chain.rate == pytest.approx(exhaustive(uneven))


def uneven_ground(seed: int, num_nodes: int) -> Ground:
    """Every other node a group whose sums take time, two of three now and then away."""
    ground = draw_ground(seed, num_nodes, SHORT)
    machines = tuple(
        replace(
            machine,
            loss=0.05 * (i % 3),
            curve=replace(machine.curve, sync_s=1e-3 * (i % 2), sync_row_s=2e-5 * (i % 2)),
        )
        for i, machine in enumerate(ground.machines)
    )
    return replace(ground, machines=machines)


@pytest.mark.parametrize(("seed", "num_nodes"), [(706, 5), (17, 4), (26, 5)])
def test_pools_whose_best_order_is_unusual_are_planned_as_well_as_exhaustive_search(
    seed: int, num_nodes: int
) -> None:
    ground = draw_ground(seed, num_nodes, SHORT)
    assert plan_pool(ground, Wish()).rate_per_s >= exhaustive(ground) * 0.9999


@few_and_many(1, 4, seed=st.integers(0, 10_000), derandomize=True)
def test_the_proved_ceiling_is_what_exhaustive_search_reaches(seed: int) -> None:
    ground = draw_ground(seed, 6, SHORT)
    best = exhaustive(ground)
    if best > 0.0:
        known = 0.9 * best
        assert best <= ceiling(ground, known) <= best * 1.001


@few_and_many(1, 6, seed=st.integers(0, 10_000), derandomize=True)
def test_eight_nodes_are_planned_as_well_as_exhaustive_search(seed: int) -> None:
    ground = draw_ground(seed, 8, model(4, layer_mib=6500.0))
    best = exhaustive(ground)
    if best > 0.0:
        assert plan_pool(ground, Wish()).rate_per_s >= best * 0.9999


@few_and_many(10, 30, seed=st.integers(0, 10_000), num_nodes=st.integers(1, 5), data=st.data())
def test_many_prices_at_once_are_the_plain_ones(
    seed: int, num_nodes: int, data: st.DataObject
) -> None:
    ground = draw_ground(seed, num_nodes)
    cuts = data.draw(
        st.lists(st.integers(1, 79), min_size=num_nodes - 1, max_size=num_nodes - 1, unique=True)
    )
    edges = [0, *sorted(cuts), 80]
    counts = tuple(b - a for a, b in itertools.pairwise(edges))
    order = tuple(range(num_nodes))
    plain = replica_figures(ground, Replica(tuple(zip(order, counts, strict=True))))
    rate, alone = rates(
        make_table(ground),
        np.array([order], dtype=np.int64),
        np.array([counts], dtype=np.int64),
        tpot_s_max=math.inf,
        halvings=44,
    )
    assert float(rate[0]) == pytest.approx(plain.rate_per_s, rel=1e-6, abs=1e-9)
    assert float(alone[0]) == pytest.approx(plain.tpot_s_single, rel=1e-9)


@few_and_many(
    4,
    15,
    counts=st.tuples(st.integers(1, 4), st.integers(0, 5)),
    slope=st.floats(0.6, 1.4),
    num_layers=st.integers(4, 16),
)
def test_flows_and_bounds_of_clusters_hold(
    counts: tuple[int, int], slope: float, num_layers: int
) -> None:
    tables = (
        {k: 5000.0 / k**slope for k in range(1, 8)},
        {k: 2000.0 / k for k in range(1, 4)},
    )
    ground = cluster(counts, tables, num_layers)
    try:
        plan = plan_cluster(ground, Wish())
    except UnavailableError:
        assert 7 * counts[0] + 3 * counts[1] < num_layers
        return
    graph = nx.DiGraph()
    for i, (start, end) in plan.spans.items():
        graph.add_edge((i, 0), (i, 1), capacity=tables[ground.kinds[i]][end - start])
        if start == 0:
            graph.add_edge("source", (i, 0))
        if end == num_layers:
            graph.add_edge((i, 1), "sink")
        for j, (start_j, _) in plan.spans.items():
            if end == start_j:
                graph.add_edge((i, 1), (j, 0), capacity=1e9)
    flow = nx.maximum_flow_value(graph, "source", "sink")
    assert flow == pytest.approx(placement_flow(ground, plan.spans))
    assert plan.flow_per_s == pytest.approx(flow)
    assert flow <= plan.bound_per_s * 1.0001
