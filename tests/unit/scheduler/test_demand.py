"""Several models in one network: shares by demand, chains called for, and shortages kept apart."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.types import ModelId, NodeId
from scheduler.allocation import Allocation, allocate, allocate_greedy, violations
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.demand import SURPLUS, fair_score, shares
from scheduler.allocation.problem import AllocationProblem, Placement
from tests.unit.scheduler.pools import node, problem, tiny_model

A, B = ModelId("a"), ModelId("b")
MODELS = (tiny_model(12, model_id="a"), tiny_model(12, model_id="b"))


def asked(
    num_nodes: int, *, demand: dict[str, float] | None = None, least: dict[str, int] | None = None
) -> AllocationProblem:
    """Equal nodes, each of which holds a whole model."""
    nodes = [node(f"n{i}", memory_mib=900, layer_ms=None) for i in range(num_nodes)]
    return replace(
        problem(*nodes, models=MODELS),
        demand=tuple((ModelId(m), d) for m, d in (demand or {}).items()),
        replicas_min=tuple((ModelId(m), n) for m, n in (least or {}).items()),
    )


def chains(plan: Allocation) -> dict[str, int]:
    model_of = {p.node_id: p.model_id for p in plan.placements}
    counts = {"a": 0, "b": 0}
    for chain in plan.pipelines:
        counts[model_of[chain[0]]] += 1
    return counts


@pytest.mark.parametrize("plan_of", [allocate, allocate_greedy])
@pytest.mark.parametrize(
    ("demand", "least", "expected"),
    [
        ({}, {}, {"a": 3, "b": 3}),
        ({"a": 2.0, "b": 1.0}, {}, {"a": 4, "b": 2}),
        ({"a": 1.0, "b": 5.0}, {}, {"a": 1, "b": 5}),
        ({"a": 1.0, "b": 5.0}, {"a": 3}, {"a": 3, "b": 3}),
        ({"a": float("nan"), "b": -1.0}, {}, {"a": 3, "b": 3}),
    ],
)
def test_chains_follow_demand_and_what_is_called_for(
    plan_of: object, demand: dict[str, float], least: dict[str, int], expected: dict[str, int]
) -> None:
    question = asked(6, demand=demand, least=least)
    plan = plan_of(question)  # type: ignore[operator]
    assert not violations(question, plan)
    assert chains(plan) == expected


def test_every_model_is_served_before_any_is_served_twice() -> None:
    plan = allocate(asked(2, demand={"a": 1000.0, "b": 1.0}))
    assert chains(plan) == {"a": 1, "b": 1}


@pytest.mark.parametrize("plan_of", [allocate, allocate_greedy])
def test_a_model_that_does_not_fit_takes_nothing_from_the_others(plan_of: object) -> None:
    large = tiny_model(2_000, model_id="large")
    held = Placement(node_id=NodeId("n0"), model_id=A, span=MODELS[0].whole)
    nodes = [node(f"n{i}", memory_mib=900, layer_ms=None) for i in range(2)]
    question = replace(
        problem(*nodes, models=(MODELS[0], large), held=(held,)), fixed=(NodeId("n0"),)
    )
    plan = plan_of(question)  # type: ignore[operator]
    assert not violations(question, plan)
    assert {p.model_id for p in plan.placements} == {"a"}
    assert any("not enough memory left for: large" in w for w in plan.warnings)


def test_what_stands_counts_when_more_is_shared_out() -> None:
    held = tuple(
        Placement(node_id=NodeId(f"n{i}"), model_id=A, span=MODELS[0].whole) for i in range(2)
    )
    question = replace(asked(4), held=held, fixed=(NodeId("n0"), NodeId("n1")))
    assert chains(allocate(question)) == chains(allocate_greedy(question)) == {"a": 2, "b": 2}


def test_new_demand_moves_nodes_only_for_a_clear_gain() -> None:
    held = tuple(
        Placement(node_id=NodeId(f"n{i}"), model_id=(A, B)[i % 2], span=MODELS[i % 2].whole)
        for i in range(6)
    )
    # Four of six already give each its part; the fifth would move for nothing.
    for demand, expected in (({"a": 1.05, "b": 1.0}, 3), ({"a": 4.0, "b": 1.0}, 4)):
        plan = allocate(replace(asked(6, demand=demand), held=held))
        assert chains(plan)["a"] == expected


@given(
    st.dictionaries(st.sampled_from([A, B, ModelId("c")]), st.floats(0.01, 1e6), min_size=1),
    st.lists(st.floats(0.0, 1e4), min_size=3, max_size=3),
)
def test_fairness_is_what_a_naive_search_finds(
    demand: dict[ModelId, float], rates: list[float]
) -> None:
    models = [A, B, ModelId("c")]
    parts = shares(models, demand)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert all(parts[m] <= max(parts.values()) for m in models)
    scores = dict(zip(models, rates, strict=True))
    served = {m: s for m, s in scores.items() if s > 0.0}
    met = sum(parts[m] for m in served) * min(
        (s / parts[m] for m, s in served.items()), default=0.0
    )
    assert met <= sum(served.values()) * (1 + 1e-9)
    expected = met + SURPLUS * (sum(served.values()) - met)
    assert fair_score(scores, parts) == pytest.approx(expected)


@pytest.mark.slow
@given(st.lists(st.integers(0, 1), min_size=2, max_size=5), st.floats(0.2, 5.0))
@example([0, 1, 1, 0], 0.203125)
@settings(max_examples=5, deadline=None)
def test_the_solver_is_as_fair_as_exhaustive_search(kinds: list[int], weight: float) -> None:
    nodes = [
        node(f"n{i}", memory_mib=900, layer_ms=(1.0, 3.0)[kind], model_id="a")
        for i, kind in enumerate(kinds)
    ]
    nodes = [replace(n, timings=(*n.timings, replace(n.timings[0], model_id=B))) for n in nodes]
    question = replace(problem(*nodes, models=MODELS), demand=((A, weight), (B, 1.0)))
    planners = [ChainPlanner(question, spec) for spec in MODELS]
    parts = {A: planners[0].demand_share, B: planners[1].demand_share}
    best = 0.0
    for choice in range(2 ** len(nodes)):
        scores = {A: 0.0, B: 0.0}
        for at, own in enumerate(nodes):
            planner = planners[choice >> at & 1]
            chain = planner.best([own.node_id], planner.spec.whole)
            assert chain is not None
            scores[planner.spec.model_id] += chain.score
        if min(scores.values()) > 0.0:
            best = max(best, fair_score(scores, parts))
    plan = allocate(question)
    got = {A: 0.0, B: 0.0}
    for placement in plan.placements:
        planner = planners[placement.model_id == B]
        chain = planner.best([placement.node_id], planner.spec.whole)
        assert chain is not None
        got[placement.model_id] += chain.score
    assert fair_score(got, parts) >= best * 0.999
