"""Plans of clusters: flows, bounds, depth, links that bind."""

from dataclasses import replace

import pytest

from plait.errors import UnavailableError
from scheduler.planning.cluster import Cluster, depth, placement_flow, regions_of
from scheduler.planning.cluster_bound import is_refuted, rate_bound
from scheduler.planning.cluster_links import must_cross
from scheduler.planning.cluster_plan import plan_cluster
from scheduler.planning.ground import Wish
from tests.unit.scheduler.grounds import cluster

BIG = {k: 8000.0 / k for k in range(1, 11)}
SMALL = {k: 3000.0 / k for k in range(1, 5)}


def test_the_flow_of_a_placement_is_its_narrowest_cut() -> None:
    chain = cluster((2, 1), (BIG, SMALL), 12)
    spans = {0: (0, 4), 1: (4, 8), 2: (8, 12)}
    assert placement_flow(chain, spans) == pytest.approx(750.0)
    assert placement_flow(chain, {0: (0, 4), 2: (8, 12)}) == 0.0
    narrow = replace(chain, links={**chain.links, (0, 1): 100.0})
    assert placement_flow(narrow, spans) == pytest.approx(100.0)
    assert depth(chain, spans) == 3


def test_a_plan_covers_all_layers_and_its_flow_is_real() -> None:
    mixed = cluster((3, 6), (BIG, SMALL), 24)
    plan = plan_cluster(mixed, Wish())
    assert placement_flow(mixed, plan.spans) == pytest.approx(plan.flow_per_s)
    assert plan.flow_per_s <= plan.bound_per_s
    assert plan.num_stages == depth(mixed, plan.spans)
    assert [rate for _, rate in plan.front] == sorted(rate for _, rate in plan.front)


def test_an_optimum_is_proved_where_equal_nodes_share_evenly() -> None:
    plan = plan_cluster(cluster((4,), (BIG,), 24), Wish())
    assert plan.flow_per_s == pytest.approx(8000.0 / 6)
    assert plan.is_proved


@pytest.mark.slow
def test_fewer_stages_carry_no_more() -> None:
    mixed = cluster((3, 6), (BIG, SMALL), 24)
    rates = []
    for stages_max in (4, 6, None):
        plan = plan_cluster(mixed, Wish(stages_max=stages_max))
        assert stages_max is None or plan.num_stages <= stages_max
        rates.append(plan.flow_per_s)
        assert plan.flow_per_s <= plan.bound_per_s * 1.001
    assert rates == sorted(rates)


@pytest.mark.slow
def test_chains_cross_narrow_links_where_many_nodes_share_them() -> None:
    wide = cluster((4, 8), (BIG, SMALL), 30)
    sides = [0 if i < 6 else 1 for i in range(12)]
    links = {
        (i, j): 1e9 if sides[i] == sides[j] else 150.0
        for i in range(12)
        for j in range(12)
        if i != j
    }
    apart: Cluster = replace(wide, links=links)
    assert [len(region) for region in regions_of(apart, 1000.0)] == [6, 6]
    plan = plan_cluster(apart, Wish())
    assert placement_flow(apart, plan.spans) == pytest.approx(plan.flow_per_s)
    assert plan.flow_per_s > 150.0


def in_pairs(of: Cluster, link: float) -> Cluster:
    """Nodes 0 and 1 here, all others there; so much on every link between."""
    links = {(i, j): 1e9 if (i < 2) == (j < 2) else link for i, j in of.links}
    return replace(of, links=links)


def test_a_crossing_takes_two_nodes_on_one_side_and_the_bound_says_so() -> None:
    """Four layers, one on each node, carry 1000; but no link between the pairs carries more than
    600, so a layer has to be shared, and three nodes are too few for the rest."""
    table = {1: 1000.0}
    near = plan_cluster(cluster((4,), (table,), 4), Wish())
    assert near.flow_per_s == pytest.approx(1000.0) and near.is_proved
    far = plan_cluster(in_pairs(cluster((4,), (table,), 4), 600.0), Wish())
    assert far.flow_per_s == pytest.approx(600.0) and far.is_proved
    five = plan_cluster(in_pairs(cluster((5,), (table,), 4), 600.0), Wish())
    assert five.flow_per_s == pytest.approx(1000.0)


def test_nodes_with_the_better_links_stand_where_ways_cross() -> None:
    table = {1: 1000.0}
    pairs = in_pairs(cluster((4,), (table,), 4), 300.0)
    wide = replace(pairs, links={**pairs.links, (1, 2): 900.0})
    assert plan_cluster(wide, Wish()).flow_per_s == pytest.approx(900.0)


def test_no_crossing_is_needed_where_one_side_holds_all() -> None:
    of = in_pairs(cluster((4,), ({1: 1000.0, 2: 900.0},), 4), 600.0)
    assert must_cross(of, 950.0)
    assert not must_cross(of, 850.0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnavailableError, match="at most 18 of 30 layers"):
        plan_cluster(cluster((1, 2), (BIG, SMALL), 30), Wish())
    with pytest.raises(UnavailableError, match="stages"):
        plan_cluster(cluster((4,), (BIG,), 30), Wish(stages_max=2))


def test_rounding_refutes_what_sums_of_throughput_allow() -> None:
    # Two nodes of 0.6 make 1.2, but no layer can be shared by less than two of them.
    table = {1: 60.0}
    assert not is_refuted([table], [4], 2, 100.0)
    assert is_refuted([table], [3], 2, 90.0 * 1.001)
    assert rate_bound([table], [3], 2, 50.0) <= 60.0 * 1.001
