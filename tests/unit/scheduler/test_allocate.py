"""Plans as an operator expects them."""

import subprocess
import sys
from dataclasses import replace

import pytest

from plait.clock import ManualClock
from plait.errors import UnavailableError
from plait.types import LayerSpan, ModelId, NodeId
from scheduler.allocation import Placement, allocate, allocate_greedy, violations
from scheduler.allocation.patterns import PatternSolution, SolvePatterns, SolverFailedError
from scheduler.allocation.solver import solve_patterns
from tests.unit.scheduler.pools import node, problem, tiny_model


def spans(plan_problem: object, **kwargs: object) -> dict[str, str]:
    plan = allocate(plan_problem, **kwargs)  # type: ignore[arg-type]
    return {p.node_id: str(p.span) for p in plan.placements}


def test_three_equal_nodes_that_are_each_too_small_make_one_balanced_chain() -> None:
    pool = problem(*(node(name, memory_mib=500, head_ms=3.0) for name in ("a", "b", "c")))
    plan = allocate(pool, clock=ManualClock())
    assert plan.solver == "highs" and plan.status == "optimal"
    assert [sorted(chain) for chain in plan.pipelines] == [["a", "b", "c"]]
    layers = {len(p.span) for p in plan.placements}
    assert sum(len(p.span) for p in plan.placements) == 30 and max(layers) - min(layers) <= 4
    last = next(p for p in plan.placements if p.span.end == 30)
    assert len(last.span) == min(layers), "the last stage has the LM head to do as well"
    assert "LM head" in last.reason and "tiny" in last.reason


def test_a_quick_node_holds_more_layers_than_a_slow_one() -> None:
    pool = problem(
        node("slow", memory_mib=400, layer_ms=4.0), node("quick", memory_mib=400, layer_ms=1.0)
    )
    plan = allocate(pool)
    count = {p.node_id: len(p.span) for p in plan.placements}
    assert count[NodeId("quick")] > count[NodeId("slow")]


def test_a_node_that_holds_all_alone_serves_alone_where_hops_cost_more() -> None:
    far = {("a", "b"): 300.0, ("a", "c"): 300.0, ("b", "c"): 300.0}
    pool = problem(*(node(name, memory_mib=4_000) for name in ("a", "b", "c")), rtt_ms=far)
    assert set(spans(pool).values()) == {"0-29"}


def test_chains_stay_inside_a_region() -> None:
    names = ["eu1", "eu2", "us1", "us2"]
    rtt = {
        (a, b): 5.0 if a[:2] == b[:2] else 150.0
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    pool = problem(*(node(name, memory_mib=420, rtt_ms=80.0) for name in names), rtt_ms=rtt)
    plan = allocate(pool)
    assert {frozenset(n[:2] for n in chain) for chain in plan.pipelines} == {
        frozenset({"eu"}),
        frozenset({"us"}),
    }


def test_too_little_memory_names_layers_and_what_there_is() -> None:
    with pytest.raises(UnavailableError) as caught:
        allocate(problem(node("a", memory_mib=300), node("b", memory_mib=300)))
    assert caught.value.code == "not_enough_memory"
    for part in ("layers 0-29 of 30", "2 free nodes with 600 MiB"):
        assert part in caught.value.message
    with pytest.raises(UnavailableError):
        allocate(problem(node("a", memory_mib=0)))
    with pytest.raises(UnavailableError):
        allocate(problem())


def test_nodes_left_over_double_the_weakest_span() -> None:
    three = problem(*(node(name, memory_mib=300) for name in ("a", "b", "c")))
    held = allocate(three).placements
    pool = problem(
        *(node(name, memory_mib=300) for name in ("a", "b", "c", "d")),
        held=held,
        fixed=("a", "b", "c"),
    )
    spare = next(p for p in allocate(pool).placements if p.node_id == "d")
    assert spare.span in [p.span for p in held]
    assert "second copy" in spare.reason


def test_a_node_on_which_nothing_fits_stands_by_and_is_named() -> None:
    pool = problem(node("a", memory_mib=2_000), node("tiny", memory_mib=80))
    plan = allocate(pool)
    assert [p.node_id for p in plan.placements] == ["a"]
    assert any("standing by" in w and "tiny" in w for w in plan.warnings)


def test_what_is_held_stays_unless_moving_pays() -> None:
    pool = problem(*(node(name, memory_mib=500) for name in ("a", "b", "c")))
    odd = {"c": (0, 10), "a": (10, 21), "b": (21, 30)}
    held = tuple(
        Placement(node_id=NodeId(n), model_id=ModelId("tiny"), span=LayerSpan(*span))
        for n, span in odd.items()
    )
    plan = allocate(replace(pool, held=held))
    assert {p.node_id: (p.span.start, p.span.end) for p in plan.placements} == odd


def test_a_gap_is_filled_with_exactly_what_is_missing() -> None:
    pool = problem(*(node(name, memory_mib=300) for name in ("a", "b", "new")))
    held = (
        Placement(node_id=NodeId("a"), model_id=ModelId("tiny"), span=LayerSpan(0, 10)),
        Placement(node_id=NodeId("b"), model_id=ModelId("tiny"), span=LayerSpan(21, 30)),
    )
    plan = allocate(replace(pool, held=held, fixed=(NodeId("a"), NodeId("b"))))
    new = next(p for p in plan.placements if p.node_id == "new")
    assert new.span == LayerSpan(10, 21) and "gap" in new.reason


def test_two_models_are_both_served_where_that_is_possible() -> None:
    models = (tiny_model(), tiny_model(12, model_id="small"))
    pool = problem(
        *(node(name, memory_mib=900, layer_ms=None) for name in ("a", "b", "c")), models=models
    )
    plan = allocate(pool)
    assert {p.model_id for p in plan.placements} == {"tiny", "small"}
    assert violations(pool, plan) == []


def test_figures_from_strangers_do_not_break_the_plan() -> None:
    wild = replace(
        node("wild", memory_mib=400, layer_ms=None),
        memory_bytes_per_s=float("nan"),
        flops_per_s=-1.0,
        coordinator_rtt_ms=float("inf"),
        up_bytes_per_s=0.0,
    )
    pool = problem(wild, node("b", memory_mib=400), rtt_ms={("wild", "b"): float("nan")})
    plan = allocate(pool)
    assert violations(pool, plan) == []


# --- solvers that do not do their work ----------------------------------------------------------


def crash(*_: object) -> PatternSolution:
    raise SolverFailedError("HiGHS: segmentation fault; PULP_CBC_CMD: not found")


def lie(columns: object, *_: object) -> PatternSolution:
    return PatternSolution(uses=(99,) * len(columns), solver="liar", status="optimal")  # type: ignore[arg-type]


def idle(columns: object, *_: object) -> PatternSolution:
    return PatternSolution(uses=(0,) * len(columns), solver="idle", status="optimal")  # type: ignore[arg-type]


def short(columns: object, *_: object) -> PatternSolution:
    return PatternSolution(uses=(), solver="short", status="optimal")


@pytest.mark.parametrize("solve", [crash, lie, idle, short])
def test_without_a_working_solver_the_plan_is_greedy(solve: SolvePatterns) -> None:
    pool = problem(*(node(name, memory_mib=300) for name in ("a", "b", "c")))
    plan = allocate(pool, solve=solve)
    assert plan.solver == "greedy" and violations(pool, plan) == []
    if solve is not idle:
        assert "without the solver" in plan.warnings[0]


@pytest.mark.slow
def test_the_plan_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from tests.unit.scheduler.pools import *\n"
        "from scheduler.allocation import allocate\n"
        "from plait.clock import ManualClock\n"
        "p = problem(*(node(f'n{i}', memory_mib=250 + 40 * (i % 4), layer_ms=1 + i % 3) "
        "for i in range(12)))\n"
        "print(allocate(p, clock=ManualClock()))\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "42")
    }
    assert len(answers) == 1


def test_a_chain_longer_than_the_planner_of_pools_looks_for_is_planned_all_the_same() -> None:
    spec = tiny_model(39, vocab_size=256)
    pool = problem(
        *(node(f"n{i:02d}", memory_mib=77, rtt_ms=150.0) for i in range(20)), models=(spec,)
    )
    plan = allocate(pool)
    assert len(plan.pipelines[0]) == 20 and violations(pool, plan) == []


@pytest.mark.parametrize("num_nodes", [24, pytest.param(64, marks=pytest.mark.slow)])
def test_many_nodes_are_planned_and_pass_the_check(num_nodes: int) -> None:
    pool = problem(
        *(
            node(
                f"n{i:02d}",
                memory_mib=200 + 37 * (i % 7),
                layer_ms=1.0 + (i * 7 % 11) / 5,
                rtt_ms=5.0 + 20 * (i % 4),
            )
            for i in range(num_nodes)
        )
    )
    plan = allocate(pool)
    greedy = allocate_greedy(pool)
    assert violations(pool, plan) == [] and len(plan.pipelines) > num_nodes // 12
    assert plan.objective_tokens_per_s >= 0.9 * greedy.objective_tokens_per_s


@pytest.mark.slow
def test_a_large_pool_is_planned_no_worse_than_by_whole_classes() -> None:
    names = [f"n{i:02d}" for i in range(16)]
    rtt = {
        (a, b): 8.0 if i % 2 == j % 2 else 110.0
        for i, a in enumerate(names)
        for j, b in enumerate(names[:i])
    }
    pool = problem(
        *(
            node(
                name,
                memory_mib=300 + 40 * (i % 5),
                layer_ms=1.0 + i % 3,
                bytes_per_s=2e6 + i * 1e6,
            )
            for i, name in enumerate(names)
        ),
        rtt_ms=rtt,
    )
    pool = replace(pool, time_limit_s=120.0)  # of time: others may use this machine
    plan = allocate(pool, clock=ManualClock())
    assert violations(pool, plan) == []
    by_classes = allocate(pool, clock=ManualClock(), solve=solve_patterns)
    assert plan.objective_tokens_per_s >= by_classes.objective_tokens_per_s * 0.999
    greedy = allocate_greedy(pool)
    assert plan.objective_tokens_per_s >= greedy.objective_tokens_per_s * 0.999
