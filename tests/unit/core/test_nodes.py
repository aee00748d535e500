"""Nodes: leases, incarnations, loading, draining, re-attaching."""

from dataclasses import replace

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import NodeState
from plait.types import (
    FinishReason,
    HeldSpan,
    LayerSpan,
    ModelId,
    NodeId,
    Reason,
    RequestId,
    WeightFormat,
)
from tests.unit.core.stories import Story, loaded_event, only

A = NodeId("a")


def held_span(start: int, end: int, **changes: object) -> HeldSpan:
    base = HeldSpan(
        model_id=ModelId("tiny"),
        span=LayerSpan(start, end),
        allocation_epoch=7,
        digest="d" * 64,
        weight_bytes=1,
        read_bytes=1,
        kv_tokens_max=500,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_silent_node_is_not_chosen_after_three_beats_and_lost_after_its_lease() -> None:
    story = Story()
    story.start("a", "b", "c")
    story.wait(3_100, beating=("b", "c"))
    assert A in story.core.state.nodes
    assert (
        only(story.submit("r1"), fx.OpenRoute) == []
    )  # a is suspect, and nobody else has its span
    story.wait(1_000, beating=("b", "c"))
    assert A not in story.core.state.nodes
    evicted = only(story.effects, fx.EvictNode)
    assert [(e.node_id, e.reason.code, e.may_rejoin) for e in evicted] == [
        (A, "lease_expired", True)
    ]


def test_a_node_that_beats_again_is_chosen_again_at_once() -> None:
    story = Story()
    story.start("a", "b", "c")
    story.wait(3_100, beating=("b", "c"))
    story.submit("r1")
    assert len(only(story.tell(story.beat("a")), fx.OpenRoute)) == 1


def test_a_loading_node_has_a_longer_lease() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    solve = only(story.wait(600), fx.SolveAllocation)[0]
    story.solve(solve)
    story.wait(10_000)
    assert story.core.state.nodes[A].state is NodeState.LOADING
    story.wait(20_000)
    assert A not in story.core.state.nodes


def test_a_detached_node_is_out_at_once_and_its_request_moves() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    opened = only(story.submit("r1"), fx.OpenRoute)[0]
    lost = opened.route[0].node_id
    effects = story.tell(ev.NodeDetached(node_id=lost, incarnation=1))
    again = only(effects, fx.OpenRoute)[0]
    assert again.epoch == 2 and again.route[0].node_id != lost
    assert only(effects, fx.EvictNode) == []


def test_the_newest_incarnation_wins_and_the_older_is_told_to_exit() -> None:
    story = Story()
    story.join("a", incarnation=5)
    effects = story.join("a", incarnation=6)
    evicted = only(effects, fx.EvictNode)[0]
    assert (evicted.incarnation, evicted.reason.code, evicted.may_rejoin) == (
        5,
        "already_connected",
        False,
    )
    effects = story.join("a", incarnation=4)
    assert [e.incarnation for e in only(effects, fx.EvictNode)] == [4]
    assert story.core.state.nodes[A].incarnation == 6


def test_messages_of_an_older_incarnation_are_counted_and_ignored() -> None:
    story = Story()
    story.join("a", incarnation=6)
    heard_ms = story.core.state.nodes[A].heard_ms
    story.now_ms += 500
    story.tell(story.beat("a", 5), ev.NodeDetached(node_id=A, incarnation=5))
    assert story.core.state.nodes[A].heard_ms == heard_ms
    assert story.core.state.counters.events_ignored == 2


def test_the_same_process_on_a_new_stream_keeps_its_requests() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    held = story.core.state.nodes[A].held
    effects = story.join("a", held=held)
    assert only(effects, fx.CloseRoute) == []
    assert story.core.state.nodes[A].state is NodeState.SERVING


def test_a_node_that_lost_its_stream_while_loading_is_told_again() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    assign = only(story.solve(only(story.wait(600), fx.SolveAllocation)[0]), fx.AssignSpan)[0]
    assert only(story.join("a", memory_mib=2_000), fx.AssignSpan) == [assign]
    held = loaded_event(assign).held
    assert only(story.join("a", memory_mib=2_000, held=held), fx.AssignSpan) == []
    assert story.core.state.nodes[A].state is NodeState.SERVING


def test_what_a_node_holds_when_it_attaches_is_served_without_loading() -> None:
    story = Story()
    story.join("a", memory_mib=2_000, held=held_span(0, 30))
    assert story.core.state.nodes[A].state is NodeState.SERVING
    opened = only(story.submit("r1"), fx.OpenRoute)
    assert len(opened) == 1
    assert story.core.state.planning.epoch >= 7, "later plans must be newer than what nodes hold"


def test_a_held_span_that_does_not_fit_is_planned_anew() -> None:
    wrong = [
        held_span(0, 31),
        held_span(0, 30, model_id=ModelId("other")),
        held_span(0, 30, kv_tokens_max=0),
    ]
    for held in wrong:
        story = Story()
        story.join("a", memory_mib=2_000, held=held)
        assert story.core.state.nodes[A].state is NodeState.JOINING
        assert len(only(story.wait(600), fx.SolveAllocation)) == 1


def test_weights_that_differ_from_the_networks_are_never_served() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)  # its digest is the network's from now on
    story.join("b", memory_mib=2_000, held=held_span(0, 30, digest="e" * 64))
    assert story.core.state.nodes[NodeId("b")].state is NodeState.JOINING
    assign = only(
        story.solve(only(story.wait(600, beating=("a", "b")), fx.SolveAllocation)[0]),
        fx.AssignSpan,
    )[0]
    loaded = loaded_event(assign)
    story.tell(replace(loaded, held=replace(loaded.held, digest="e" * 64)))
    node = story.core.state.nodes[NodeId("b")]
    assert node.state is NodeState.JOINING and "differ" in node.last_error


def test_a_load_report_of_another_plan_or_span_is_ignored() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    assign = only(story.solve(only(story.wait(600), fx.SolveAllocation)[0]), fx.AssignSpan)[0]
    right = loaded_event(assign)
    story.tell(
        replace(right, held=replace(right.held, allocation_epoch=assign.epoch + 1)),
        replace(right, held=replace(right.held, span=LayerSpan(0, 29))),
        ev.NodeLoadFailed(
            node_id=A,
            incarnation=1,
            epoch=assign.epoch - 1,
            reason=Reason(code="weights_corrupt", message="old"),
        ),
    )
    assert story.core.state.nodes[A].state is NodeState.LOADING
    assert story.core.state.counters.events_ignored == 3


def test_a_second_load_report_changes_nothing() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    assign = only(story.effects, fx.AssignSpan)[0]
    story.tell(loaded_event(assign, kv_tokens=1))
    assert story.core.state.nodes[A].kv_tokens_max == 4096


def test_a_drained_node_finishes_what_runs_and_takes_nothing_new() -> None:
    story = Story()
    story.start("a", "b", memory_mib=2_000)
    first = only(story.submit("r1"), fx.OpenRoute)[0].route[0].node_id
    effects = story.tell(
        ev.NodeDrainAsked(node_id=first, incarnation=1, reason="sigterm", limit_ms=5_000)
    )
    assert only(effects, fx.DrainNode)[0].limit_ms == 5_000
    assert only(effects, fx.CloseRoute) == []
    for name in ("r2", "r3"):
        assert only(story.submit(name), fx.OpenRoute)[0].route[0].node_id != first
    ended = only(story.finish("r1"), fx.EndRequest)[0]
    assert ended.finish_reason is FinishReason.LENGTH
    effects = story.tell(ev.NodeDrained(node_id=first, incarnation=1))
    assert only(effects, fx.EvictNode)[0].reason.code == "drained"
    assert first not in story.core.state.nodes


def test_a_drain_of_a_foreign_incarnation_and_a_drained_nobody_asked_for_are_ignored() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.tell(
        ev.NodeDrainAsked(node_id=A, incarnation=9, reason="x", limit_ms=1),
        ev.NodeDrained(node_id=A, incarnation=1),
    )
    assert story.core.state.nodes[A].state is NodeState.SERVING


def test_without_its_gateway_link_a_node_serves_nothing() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    effects = story.tell(ev.GatewayLinkChanged(node_id=A, incarnation=1, is_up=False))
    assert only(effects, fx.CloseRoute)[0].request_id == RequestId("r1")
    assert only(effects, fx.OpenRoute) == []
    story.wait(1_000, beating=("a",))
    effects = story.tell(ev.GatewayLinkChanged(node_id=A, incarnation=1, is_up=True))
    assert only(effects, fx.OpenRoute)[0].epoch == 2


def test_a_link_of_an_older_process_does_not_speak_for_the_new_one() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.tell(ev.GatewayLinkChanged(node_id=A, incarnation=0, is_up=False))
    assert story.core.state.gateway_links == {A: 1}
    story.tell(ev.GatewayLinkChanged(node_id=A, incarnation=0, is_up=True))
    assert story.core.state.gateway_links == {A: 1}


def test_new_nodes_are_asked_to_measure_a_few_others() -> None:
    story = Story()
    for index in range(12):
        story.join(f"n{index:02d}")
    probes = only(story.effects, fx.ProbeNeighbours)
    assert len(probes) == 11
    assert max(len(probe.neighbours) for probe in probes) == 8


def test_a_span_in_other_numbers_than_the_networks_is_planned_anew() -> None:
    story = Story()
    story.join("a", memory_mib=2_000, held=held_span(0, 30, weight_format=WeightFormat.STORED))
    assert story.core.state.nodes[A].state is NodeState.JOINING
    assign = only(story.solve(only(story.wait(600), fx.SolveAllocation)[0]), fx.AssignSpan)[0]
    loaded = loaded_event(assign)
    story.tell(replace(loaded, held=replace(loaded.held, weight_format=WeightFormat.Q4_1)))
    node = story.core.state.nodes[A]
    assert node.state is NodeState.JOINING
    assert "as q4_1, the network serves it as native" in node.last_error
