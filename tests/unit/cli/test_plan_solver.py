"""Solvers that hang, crash, lie or are missing: a greedy plan all the same, and one warning."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from plait.cli.plan_cluster import read_cluster
from plait.cli.plan_nominal import read_nominal
from plait.cli.plan_view import pool_json
from plait.cli.solver import Solver
from plait.errors import UnavailableError
from scheduler.allocation.verify import violations
from scheduler.planning.check import pool_violations, shared_violations
from scheduler.planning.cluster_check import cluster_violations
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import PoolPlan, plan_pool
from scheduler.simulation.pool import nominal_pool
from scheduler.simulation.pool_planner import pool_planner
from tests.unit.cli.test_plan_files import cluster, pool
from tests.unit.scheduler.pools import node, problem

SAID = {
    "hangs": "gave no plan within",
    "is killed": "ended with -9",
    "crashes": "ended with 3",
    "answers nonsense": "cannot be read",
    "answers another question": "answered with a list",
    "lies": "refused",
    "is odd": "c",
    "is missing": "did not start",
}


def bad(how: str) -> Solver:
    if how == "is missing":
        return Solver(("/no/such/solver",))
    script = str(Path(__file__).with_name("bad_solver.py"))
    if how == "hangs":
        return Solver((sys.executable, script, how), grace_s=0.3, still_s=0.2)
    return Solver((sys.executable, script, how), grace_s=30.0)


@pytest.mark.parametrize("how", SAID)
def test_a_pool_is_planned_greedily_where_the_solver(how: str) -> None:
    ground = read_nominal(pool(12), "pool", None).ground
    plan = bad(how).plan_pool(ground, Wish(time_limit_s=0.1))
    assert plan.solver == "greedy" and plan.chains
    assert pool_violations(ground, plan) == []
    (warning,) = plan.warnings
    assert SAID[how] in warning


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lies", "is missing"])
def test_a_pool_is_shared_greedily_where_the_solver(how: str) -> None:
    table = pool(4)
    table["models"]["small"] = {**table["models"]["large"], "layers": 16}
    grounds = [read_nominal(table, "pool", name).ground for name in ("large", "small")]
    plan = bad(how).plan_shared(grounds, (0.5, 0.5), Wish(time_limit_s=0.1))
    assert shared_violations(grounds, plan.plans) == []
    assert all(own.chains for own in plan.plans)
    said = {warning for own in plan.plans for warning in own.warnings}
    assert any(SAID[how] in warning for warning in said)


@pytest.mark.slow
def test_a_simulation_goes_on_with_greedy_chains_where_the_solver_hangs() -> None:
    simulated = nominal_pool(read_nominal(pool(12), "pool", None).ground)
    solver = bad("hangs")

    def plan(ground: Ground, wish: Wish) -> PoolPlan:
        return solver.plan_pool(ground, replace(wish, time_limit_s=0.1))

    assert pool_planner(simulated, range(12), plan=plan)


@pytest.mark.parametrize("how", ["hangs", "lies", "is missing"])
def test_a_cluster_is_planned_greedily_where_the_solver(how: str) -> None:
    read = read_cluster(cluster(), "cluster")
    plan = bad(how).plan_cluster(read, Wish(time_limit_s=0.1))
    assert plan.solver == "greedy" and plan.flow_per_s > 0.0
    assert cluster_violations(read, plan) == []
    (warning,) = plan.warnings
    assert SAID[how] in warning


@pytest.mark.parametrize("how", ["hangs", "lies", "is missing"])
def test_a_network_is_planned_greedily_where_the_solver(how: str) -> None:
    asked = replace(problem(*(node(n, memory_mib=420) for n in "abcd")), time_limit_s=0.1)
    plan = bad(how).allocate(asked)
    assert plan.solver == "greedy" and plan.pipelines
    assert violations(asked, plan) == []
    assert [w for w in plan.warnings if SAID[how] in w] == list(plan.warnings[:1])


def test_a_greedy_plan_has_no_bound_for_programs_either() -> None:
    read = read_nominal(pool(12), "pool", None)
    plan = plan_pool(read.ground, Wish(), trouble="none is installed")
    shown = json.loads(json.dumps(pool_json(read, plan, 1), allow_nan=False))
    assert shown["bound_tokens_per_s"] is None and shown["gap_percent"] is None
    assert shown["warnings"] == ["planned without the solver: none is installed"]


def test_a_solver_that_works_is_believed_and_refusals_come_through() -> None:
    read = read_cluster(cluster(), "cluster")
    assert Solver().plan_cluster(read, Wish()).solver == "highs"
    with pytest.raises(UnavailableError, match="stages") as refused:
        Solver().plan_cluster(read, Wish(stages_max=1))
    assert refused.value.code == "slo_infeasible"


def test_a_greedy_placement_keeps_its_bound_on_stages() -> None:
    read = read_cluster(cluster(), "cluster")
    with pytest.raises(UnavailableError, match="at most 1 stages"):
        bad("crashes").plan_cluster(read, Wish(stages_max=1))


def test_the_check_of_clusters_finds_what_is_wrong() -> None:
    read = read_cluster(cluster(), "cluster")
    plan = Solver().plan_cluster(read, Wish())
    assert cluster_violations(read, plan) == []
    wrong = {
        "no node": {9: (0, 4)},
        "of 12": {0: (0, 14)},
        "cannot hold": {0: (0, 9)},
        "it carries": {0: (0, 4), 1: (4, 8)},
    }
    for said, spans in wrong.items():
        assert said in cluster_violations(read, replace(plan, spans=spans))[0]
    low = replace(plan, bound_per_s=1.0)
    assert any("exceeds its bound" in s for s in cluster_violations(read, low))
    assert any("more than 1" in s for s in cluster_violations(read, plan, stages_max=1))
