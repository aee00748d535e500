"""A node that stays slow loses layers to others, once; noise moves nobody."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.slowdown import chain_share
from coordinator.core.state import Limits
from plait.types import LayerSpan, NodeId, RequestId, StepTotals
from scheduler.cost import stage_cost
from tests.unit.core.stories import IDLE, Story, only

NAMES = ("a", "b", "c")
STEPS = 8


def serving() -> Story:
    story = Story(Limits(kv_tokens_min=1024, reprice_ms=10_000, repair_interval_ms=5_000))
    story.start(*NAMES, memory_mib=500)
    return story


def beat(story: Story, slow: dict[str, float]) -> list[fx.Effect]:
    """A second in which every node that holds layers worked, so many times slower than it said."""
    caused: list[fx.Effect] = []
    (spec,) = story.core.state.models.values()
    for name in NAMES:
        record = story.core.state.nodes[NodeId(name)]
        if record.held is None or record.profile is None:
            caused += story.tell(story.beat(name))
            continue
        span = record.held.span
        step_ms = slow[name] * stage_cost(record.profile, spec).decode_ms(
            len(span), 1, is_first=span.start == 0, is_last=span.end == spec.num_layers
        )
        before = record.load.steps if record.load is not None else StepTotals()
        steps = replace(
            before,
            decode_steps=before.decode_steps + STEPS,
            decode_ms=before.decode_ms + STEPS * step_ms,
            decode_rows=before.decode_rows + STEPS,
            decode_layers=before.decode_layers + STEPS * len(span),
        )
        load = replace(IDLE, steps=steps)
        caused += story.tell(ev.NodeReported(node_id=NodeId(name), incarnation=1, load=load))
    return caused + story.wait(1_000)


def live(story: Story, slow: dict[str, float], *, seconds: int, seed: int = 0) -> int:
    """Time passes with noise of 5 %, plans are made and loaded; returns how many were asked for."""
    rng, num_asked = random.Random(seed), 0
    for _ in range(seconds):
        caused = beat(story, {n: slow.get(n, 1.0) * rng.uniform(0.95, 1.05) for n in NAMES})
        while caused:
            solves = only(caused, fx.SolveAllocation)
            num_asked += len(solves)
            caused = [e for s in solves for e in story.solve(s)] + [
                e for a in only(caused, fx.AssignSpan) for e in story.load(a)
            ]
    return num_asked


def spans(story: Story) -> dict[str, LayerSpan | None]:
    return {n.node_id: n.span for n in story.core.state.nodes.values()}


def layers_run(story: Story, name: str) -> int:
    """Layers of the planned chains that run on the node."""
    plan, at, count = story.core.state.planning.in_force, 0, 0
    assert plan is not None
    for chain in plan.pipelines:
        for node_id in chain:
            span = spans(story)[node_id]
            assert span is not None
            count += span.end - at if node_id == name else 0
            at = span.end % 30
    return count


def test_layers_go_away_from_a_node_that_stays_slow_and_never_come_back() -> None:
    story = serving()
    assert live(story, {}, seconds=30) == 0
    before = spans(story)
    (slow,) = (n for n, span in before.items() if span is not None and span.end == 30)
    assert live(story, {slow: 4.0}, seconds=40) >= 1
    after = spans(story)
    assert layers_run(story, slow) < 13, (before, after)
    assert live(story, {slow: 4.0}, seconds=120, seed=1) == 0, "what is known is no news"
    assert spans(story) == after


def test_a_chain_is_worth_what_its_slowest_makes_of_it() -> None:
    story = serving()
    live(story, {}, seconds=10)
    node = story.core.state.nodes[NodeId("b")]
    assert chain_share(story.core.state, node) == pytest.approx(1.0, abs=0.06)
    live(story, {"b": 2.0}, seconds=9)
    assert chain_share(story.core.state, node) < 0.85


def test_a_busy_node_is_left_alone_until_it_is_idle() -> None:
    story = serving()
    live(story, {}, seconds=10)
    before = spans(story)
    (slow,) = (n for n, span in before.items() if span is not None and span.end == 30)
    story.submit("r", prompt=10, new=500)
    assert story.core.state.nodes[NodeId(slow)].pipelines
    live(story, {slow: 4.0}, seconds=40)
    assert spans(story)[slow] == before[slow]
    story.tell(ev.RequestCancelled(request_id=RequestId("r")))
    live(story, {slow: 4.0}, seconds=20)
    assert layers_run(story, slow) < 13


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), slow=st.dictionaries(st.sampled_from(NAMES), st.floats(0.9, 5)))
def test_nobody_moves_back_and_forth(seed: int, slow: dict[str, float]) -> None:
    story = serving()
    left: dict[str, list[LayerSpan | None]] = {}
    at = spans(story)
    for step in range(6):
        live(story, slow, seconds=20, seed=seed + step)
        now = spans(story)
        for name in NAMES:
            if now[name] != at[name]:
                assert now[name] not in left.get(name, []), (step, name, now)
                left.setdefault(name, []).append(at[name])
        at = now
