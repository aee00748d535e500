"""Observed step times reach routes, plans, and what people see."""

from dataclasses import replace

import pytest

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.calibrating import live_stage_ms, node_cost
from coordinator.core.question import planning_profile
from coordinator.core.state import Limits
from plait.types import NodeId, StepTotals
from scheduler.cost import stage_cost
from tests.unit.core.stories import IDLE, Story, only
from tests.unit.scheduler.pools import node

A = NodeId("a")
STEPS_PER_BEAT = 8


def work(story: Story, name: str, slow: float, *, beats: int) -> list[fx.Effect]:
    """Heartbeats of a node whose decode steps take `slow` times what it measured."""
    record = story.core.state.nodes[NodeId(name)]
    assert record.profile is not None and record.span is not None
    spec = next(iter(story.core.state.models.values()))
    step_ms = slow * stage_cost(record.profile, spec).decode_ms(
        len(record.span), 1, is_first=True, is_last=True
    )
    caused: list[fx.Effect] = []
    for _ in range(beats):
        before = record.load.steps if record.load is not None else StepTotals()
        now = replace(
            before,
            decode_steps=before.decode_steps + STEPS_PER_BEAT,
            decode_ms=before.decode_ms + STEPS_PER_BEAT * step_ms,
            decode_rows=before.decode_rows + STEPS_PER_BEAT,
            decode_layers=before.decode_layers + STEPS_PER_BEAT * len(record.span),
        )
        caused += story.tell(
            ev.NodeReported(node_id=NodeId(name), incarnation=1, load=replace(IDLE, steps=now))
        )
        caused += story.wait(1_000)
    return caused


def serving() -> Story:
    story = Story(Limits(kv_tokens_min=1024, reprice_ms=10_000))
    story.start("a", memory_mib=2_000)
    story.submit("r", prompt=10, new=500)
    return story


def test_a_slow_node_is_priced_as_it_is_and_the_error_is_shown() -> None:
    story = serving()
    work(story, "a", 2.0, beats=8)
    record = story.core.state.nodes[A]
    (spec,) = story.core.state.models.values()
    assert record.profile is not None
    raw = stage_cost(record.profile, spec)
    assert node_cost(record, spec).layer_ms == pytest.approx(2.0 * raw.layer_ms)
    assert live_stage_ms(record) == pytest.approx(2.0 * raw.decode_ms(30, 1))
    seen = story.core.view(story.now_ms).nodes[0]
    assert seen.decode_error_percent == pytest.approx(-50.0) and seen.prefill_error_percent is None


def test_what_lasts_is_planned_with_and_one_outlier_is_not() -> None:
    story = serving()
    assert only(work(story, "a", 1.0, beats=9), fx.SolveAllocation) == []
    work(story, "a", 40.0, beats=1)
    record, models = story.core.state.nodes[A], story.core.state.models
    record_ms = node("a").timings[0].decode_layer_ms
    assert planning_profile(record, models) == record.profile
    story.join("b", memory_mib=2_000)
    story.settle(beating=("a",))
    # A spare is at hand, so another plan may be asked for; it knows what was seen.
    solves = only(work(story, "a", 3.0, beats=20), fx.SolveAllocation)
    assert solves, "a lasting departure asks for another plan"
    planned = {p.node_id: p for p in solves[-1].problem.nodes}[A]
    assert planned.timings[0].decode_layer_ms == pytest.approx(3.0 * record_ms)


def test_bandwidth_is_known_per_direction() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    one, two = A, NodeId("b")
    for a, b, rate in ((one, two, 1e6), (two, one, 0.0)):
        story.tell(
            ev.NeighbourMeasured(
                node_id=a, neighbour_id=b, rtt_ms=9.0, bytes_per_s=rate, is_reachable=True
            )
        )
    links = story.core.state.links
    assert links.bytes_per_s(one, two) == 1e6
    assert links.bytes_per_s(two, one) == links.predicted_bytes_per_s(two, one) == 1e8
    hop = next(n for n in story.core.view(0).nodes if n.node_id == "a").hops[0]
    assert (hop.rtt_ms, hop.predicted_rtt_ms) == (9.0, 2.0)
    assert (hop.bytes_per_s, hop.predicted_bytes_per_s) == (1e6, 1e8)
