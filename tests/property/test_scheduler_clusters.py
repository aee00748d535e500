"""Bounds of clusters whose links bind, against every placement there is."""

import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.errors import UnavailableError
from scheduler.planning.cluster import Cluster, placement_flow
from scheduler.planning.cluster_check import cluster_violations
from scheduler.planning.cluster_plan import plan_cluster
from scheduler.planning.ground import Wish
from tests.unit.scheduler.grounds import cluster

LAYERS = 3


def draw_cluster(seed: int) -> Cluster:
    """Up to four nodes in one to three places; most links between places carry little."""
    rng = Random(seed)
    num_kinds = rng.randrange(1, 3)
    counts = tuple(rng.randrange(1, 5 - num_kinds) for _ in range(num_kinds))
    tables = tuple(
        {k: rng.choice((300.0, 700.0, 1000.0)) / k for k in range(1, rng.randrange(2, 5))}
        for _ in counts
    )
    drawn = cluster(counts, tables, LAYERS)
    places = [rng.randrange(rng.randrange(1, 4)) for _ in drawn.kinds]
    links = {
        (i, j): 1e9 if places[i] == places[j] else rng.choice((40.0, 150.0, 400.0))
        for i, j in drawn.links
    }
    return replace(drawn, links=links)


def best_flow(of: Cluster) -> float:
    """Over every span of every node."""
    options = [
        [None]
        + [(start, start + k) for k in of.table[kind] for start in range(of.num_layers - k + 1)]
        for kind in of.kinds
    ]
    return max(
        placement_flow(of, {i: span for i, span in enumerate(chosen) if span is not None})
        for chosen in itertools.product(*options)
    )


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([None, None, 3, 2]))
def test_no_placement_carries_more_than_the_bound(seed: int, stages_max: int | None) -> None:
    of = draw_cluster(seed)
    try:
        plan = plan_cluster(of, Wish(stages_max=stages_max))
    except UnavailableError:
        return
    assert not cluster_violations(of, plan, stages_max=stages_max)
    if stages_max is None:
        best = best_flow(of)
        assert plan.flow_per_s <= best * (1 + 1e-6)
        assert best <= plan.bound_per_s * (1 + 1e-6)
