"""The pattern ILP itself, with both solvers."""

import pytest

from plait.types import ModelId
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.classes import NodeClass, classify, regions
from scheduler.allocation.columns import Column, make_columns
from scheduler.allocation.patterns import SolverFailedError
from scheduler.allocation.solver import SOLVERS, solve_patterns
from tests.unit.scheduler.pools import node, problem, tiny_model

NONE: frozenset[ModelId] = frozenset()


def columns_of(*names: str) -> tuple[list[Column], list[NodeClass]]:
    pool = problem(*(node(name, memory_mib=420) for name in names))
    planner = ChainPlanner(pool, tiny_model())
    classes = classify([planner], [p.node_id for p in pool.nodes])
    return make_columns([planner], classes, []), classes


@pytest.mark.parametrize("solver", SOLVERS)
def test_each_solver_packs_the_best_disjoint_chains(solver: str) -> None:
    columns, classes = columns_of("a", "b", "c", "d")
    answer = solve_patterns(columns, classes, NONE, 5.0, solvers=(solver,))
    assert answer.status == "optimal"
    used = [0] * len(classes)
    total = 0.0
    for column, use in zip(columns, answer.uses, strict=True):
        total += use * column.chain.score
        used = [u + use * c for u, c in zip(used, column.counts, strict=True)]
    assert max(used) <= 1
    best_single = max(column.chain.score for column in columns)
    assert total >= best_single


def test_the_next_solver_is_tried_where_the_first_is_missing() -> None:
    columns, classes = columns_of("a", "b")
    answer = solve_patterns(columns, classes, NONE, 5.0, solvers=("NO_SUCH", "PULP_CBC_CMD"))
    assert answer.solver == "cbc"
    with pytest.raises(SolverFailedError, match="NO_SUCH"):
        solve_patterns(columns, classes, NONE, 5.0, solvers=("NO_SUCH",))


def test_a_model_that_must_be_served_is_served_though_another_is_worth_more() -> None:
    big, small = tiny_model(30), tiny_model(30, model_id="other")
    pool = problem(
        node("a", memory_mib=1_500, layer_ms=0.1), node("b", memory_mib=1_500), models=(big, small)
    )
    planners = [ChainPlanner(pool, spec) for spec in (big, small)]
    classes = classify(planners, [p.node_id for p in pool.nodes])
    columns = make_columns(planners, classes, [])
    must = frozenset({ModelId("tiny"), ModelId("other")})
    answer = solve_patterns(columns, classes, must, 5.0)
    served = {
        column.planner.spec.model_id
        for column, use in zip(columns, answer.uses, strict=True)
        if use
    }
    assert served == must


def test_regions_are_clusters_of_near_nodes() -> None:
    rtt = {("a", "b"): 5.0, ("b", "c"): 20.0, ("a", "c"): 30.0, ("a", "d"): 120.0}
    pool = problem(*(node(n, rtt_ms=100.0) for n in "abcd"), rtt_ms=rtt)
    planner = ChainPlanner(pool, tiny_model())
    region = regions(planner, [p.node_id for p in pool.nodes])
    names = {str(node_id): number for node_id, number in region.items()}
    assert names["a"] == names["b"] == names["c"] != names["d"]


def test_large_pools_are_planned_by_class() -> None:
    pool = problem(
        *(node(f"n{i:03d}", memory_mib=300 + i % 5, layer_ms=1 + i % 3) for i in range(60))
    )
    planner = ChainPlanner(pool, tiny_model())
    classes = classify([planner], [p.node_id for p in pool.nodes])
    assert len(classes) <= 14 and sum(len(c.members) for c in classes) == 60
