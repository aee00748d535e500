"""Several models: what is asked for reaches plans; what a plan wants no more is let go."""

from dataclasses import replace
from random import Random

import pytest

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.core import Core
from coordinator.core.demand import DEPARTURE, Demand
from coordinator.core.lifetimes import SESSIONS_MAX, Lifetimes
from coordinator.core.machines import NodeState
from coordinator.core.state import Limits
from plait.types import ModelId, NodeId
from scheduler.allocation import allocate_greedy
from tests.unit.core.stories import Story, loaded_event, only
from tests.unit.scheduler.pools import node, tiny_model

A, B = ModelId("a"), ModelId("b")
MODELS = (tiny_model(12, model_id="a"), tiny_model(12, model_id="b"))


def story_of(demand: dict[ModelId, float] | None = None) -> Story:
    limits = Limits(kv_tokens_min=1024, demand_patience_ms=5_000)
    story = Story(limits, models=MODELS)
    story.core = Core(MODELS, limits, Random(1), demand=demand, network_id="test")
    return story


def join_all(story: Story, count: int) -> None:
    for i in range(count):
        profile = node(f"n{i}", memory_mib=900, layer_ms=None)
        story.join(f"n{i}", profile=profile)
    story.settle(beating=tuple(f"n{i}" for i in range(count)))


def served(story: Story) -> dict[str, int]:
    nodes = story.core.state.nodes.values()
    return {m: sum(n.model_id == m and n.held is not None for n in nodes) for m in ("a", "b")}


def test_the_operators_demand_shares_the_nodes_and_is_shown() -> None:
    story = story_of({A: 2.0, B: 1.0})
    join_all(story, 6)
    assert served(story) == {"a": 4, "b": 2}
    a, b = story.core.view(story.now_ms).models
    assert [a.demand_share, b.demand_share] == pytest.approx([2 / 3, 1 / 3])
    assert a.is_demand_given and a.is_ready and b.is_ready


def test_observed_demand_calls_for_another_plan_when_it_lasts() -> None:
    story = story_of()
    join_all(story, 6)
    assert served(story) == {"a": 3, "b": 3}
    beating = tuple(f"n{i}" for i in range(6))
    solves: list[fx.SolveAllocation] = []
    for i in range(12):
        story.submit(f"r{i}", prompt=3_000, new=200, model="a")
        solves += only(story.wait(1_000, beating=beating), fx.SolveAllocation)
        story.tell(ev.RequestCancelled(request_id=f"r{i}"))  # type: ignore[arg-type]
    assert solves, "a model that is asked for all the time should have more"
    demand = dict(solves[-1].problem.demand)
    assert demand[A] > DEPARTURE * demand[B]


def test_a_model_too_large_leaves_the_other_alone() -> None:
    limits = Limits(kv_tokens_min=1024)
    models = (MODELS[0], tiny_model(2_000, model_id="large"))
    story = Story(limits, models=models)
    join_all(story, 2)
    assert served(story)["a"] == 2
    small, large = story.core.view(story.now_ms).models
    assert small.is_ready and not large.is_ready
    assert only(story.submit("r", model="a"), fx.OpenRoute)


def test_demand_fades_and_no_model_is_given_up() -> None:
    demand = Demand((A, B))
    demand.ask(A, 1_000_000.0, 0)
    assert demand.shares()[A] > 0.99 and demand.shares()[B] > 0.0
    assert not demand.is_departed(0, patience_ms=1_000)
    assert demand.is_departed(1_000, patience_ms=1_000)
    demand.plan()
    assert not demand.is_departed(9_000, patience_ms=0)
    demand.ask(B, 1.0, 10_000_000)
    assert demand.shares()[A] == pytest.approx(0.5, abs=0.01)
    assert Demand((A, B), {A: 3.0, B: 1.0}).shares() == {A: 0.75, B: 0.25}


def test_lifetimes_are_remembered_over_reconnects() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    for incarnation in range(1, 4):
        story.wait(60_000, beating=("a", "b"))
        story.tell(ev.NodeDetached(node_id=NodeId("a"), incarnation=incarnation))
        story.join("a", incarnation=incarnation + 1, memory_mib=2_000)
    solve = only(story.wait(600, beating=("a", "b")), fx.SolveAllocation)[-1]
    known = dict(solve.problem.mean_session_s)
    assert known[NodeId("a")] < known[NodeId("b")] / 3
    lifetimes = Lifetimes()
    for _ in range(2 * SESSIONS_MAX):
        lifetimes.record(NodeId("a"), 60_000)
    assert lifetimes.mean_session_s(NodeId("a"), 0) < 5_000 and len(lifetimes) == 1


def test_an_idle_node_that_a_moving_plan_wants_no_more_lets_go() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    story.tell(ev.ReplanAsked())
    solve = only(story.wait(3_100, beating=("a", "b")), fx.SolveAllocation)[-1]
    plan = allocate_greedy(solve.problem)
    kept = plan.placements[0].node_id
    plan = replace(
        plan,
        placements=tuple(p for p in plan.placements if p.node_id == kept),
        pipelines=((kept,),),
        objective_tokens_per_s=0.0,
    )
    effects = story.tell(ev.AllocationSolved(epoch=solve.epoch, allocation=plan))
    (order,) = only(effects, fx.UnassignSpan)
    other = story.core.state.nodes[order.node_id]
    assert order.node_id != kept and other.state is NodeState.JOINING and other.held is None
    assert other.span is None and story.core.state.nodes[kept].state is NodeState.SERVING
    assert only(story.submit("r"), fx.OpenRoute)[0].route[0].node_id == kept
    again = only(story.wait(3_100, beating=("a", "b")), fx.SolveAllocation)
    for solve in again:
        for assign in only(story.solve(solve), fx.AssignSpan):
            story.tell(loaded_event(assign, 4096))


def test_a_node_with_requests_keeps_what_it_holds() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r")
    story.tell(ev.ReplanAsked())
    effects = story.wait(3_100, beating=("a",))
    assert only(effects, fx.UnassignSpan) == [] and only(effects, fx.SolveAllocation) == []
