"""Plans: when they are asked for, what is believed, what moves."""

from dataclasses import replace

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import NodeState
from coordinator.core.state import Limits
from plait.types import LayerSpan, NodeId, Reason
from scheduler.allocation import allocate_greedy
from tests.unit.core.stories import Story, loaded_event, only
from tests.unit.core.test_nodes import held_span


def test_nodes_that_arrive_together_are_planned_together() -> None:
    story = Story()
    story.join("a")
    assert only(story.wait(300), fx.SolveAllocation) == []
    story.join("b")
    story.wait(300)
    story.join("c")
    solves = only(story.wait(600), fx.SolveAllocation)
    assert [len(s.problem.nodes) for s in solves] == [3]


def test_arrivals_without_end_do_not_put_the_plan_off_for_ever() -> None:
    story = Story()
    solves: list[fx.SolveAllocation] = []
    for index in range(12):
        story.join(f"n{index:02d}")
        solves += only(story.wait(400), fx.SolveAllocation)
    assert len(solves) >= 1


def test_the_first_plan_waits_for_the_nodes_that_are_expected_but_not_for_ever() -> None:
    limits = Limits(kv_tokens_min=1024, first_plan_nodes_min=3, first_plan_wait_ms=5_000)
    story = Story(limits)
    story.join("a", memory_mib=2_000)
    assert only(story.wait(4_000), fx.SolveAllocation) == []
    assert len(only(story.wait(1_100), fx.SolveAllocation)) == 1
    story = Story(limits)
    for name in ("a", "b", "c"):
        story.join(name)
    assert len(only(story.wait(600), fx.SolveAllocation)) == 1


def test_after_a_restart_nobody_moves_before_the_others_had_time_to_come_back() -> None:
    story = Story()
    beating = ("a", "b", "c")
    story.join("a", held=held_span(0, 15))
    story.join("b", held=held_span(0, 15))
    assert only(story.wait(11_000, beating=beating), fx.SolveAllocation) == []
    story.join("c", held=held_span(15, 30))
    story.wait(10_000, beating=beating)
    assert only(story.effects, fx.AssignSpan) == []
    left = Story()
    left.join("a", held=held_span(0, 15))
    left.join("b", held=held_span(0, 15))
    assert len(only(left.wait(13_000, beating=beating), fx.SolveAllocation)) == 1


def test_a_stale_plan_is_dropped() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    solve = only(story.wait(600), fx.SolveAllocation)[0]
    plan = allocate_greedy(solve.problem)
    assert story.tell(ev.AllocationSolved(epoch=solve.epoch - 1, allocation=plan)) == []
    assert story.tell(ev.AllocationSolved(epoch=solve.epoch + 1, allocation=plan)) == []
    assert len(story.tell(ev.AllocationSolved(epoch=solve.epoch, allocation=plan))) == 1
    assert story.tell(ev.AllocationSolved(epoch=solve.epoch, allocation=plan)) == []


def test_a_plan_that_lies_is_refused_and_made_without_the_solver() -> None:
    story = Story()
    for name in ("a", "b", "c"):
        story.join(name)
    solve = only(story.wait(600), fx.SolveAllocation)[0]
    plan = allocate_greedy(solve.problem)
    lie = replace(
        plan,
        placements=(replace(plan.placements[0], span=LayerSpan(0, 1)), *plan.placements[1:]),
    )
    effects = story.tell(ev.AllocationSolved(epoch=solve.epoch, allocation=lie))
    assert sum(len(a.span) for a in only(effects, fx.AssignSpan)) == 30
    view = story.core.view(story.now_ms)
    assert view.plan is not None and "without the solver" in view.plan.warnings[0]


def test_a_solver_that_crashes_or_never_answers_is_done_without() -> None:
    for is_silent in (True, False):
        story = Story()
        story.join("a", memory_mib=2_000)
        solve = only(story.wait(600, beating=("a",)), fx.SolveAllocation)[0]
        if is_silent:
            effects = story.wait(31_000, beating=("a",))
        else:
            reason = Reason(code="solver_failed", message="signal 9")
            effects = story.tell(
                ev.AllocationSolved(epoch=solve.epoch, allocation=None, reason=reason)
            )
        assert len(only(effects, fx.AssignSpan)) == 1


def test_too_little_memory_is_said_and_the_next_node_completes_the_plan() -> None:
    story = Story()
    story.join("a")
    story.join("b")
    solve = only(story.wait(600, beating=("a", "b")), fx.SolveAllocation)[0]
    assert story.solve(solve) == []
    lack = story.core.view(story.now_ms).models[0].lack
    assert "layers 0-29 of 30 have no node" in lack and "MiB are missing. Join a node with" in lack
    assert only(story.wait(20_000, beating=("a", "b")), fx.SolveAllocation) == []
    story.join("c")
    solve = only(story.wait(600, beating=("a", "b", "c")), fx.SolveAllocation)[0]
    assert len(only(story.solve(solve), fx.AssignSpan)) == 3


def test_serving_nodes_keep_their_spans_when_others_join() -> None:
    story = Story()
    story.start("a", "b", "c")
    spans = {n.node_id: n.span for n in story.core.state.nodes.values()}
    story.join("d", memory_mib=2_000)
    solve = only(story.wait(600, beating=("a", "b", "c", "d")), fx.SolveAllocation)[0]
    assert set(solve.problem.fixed) == {"a", "b", "c"}
    assigned = only(story.solve(solve), fx.AssignSpan)
    assert [a.node_id for a in assigned] == ["d"]
    assert all(story.core.state.nodes[n].span == span for n, span in spans.items())


def test_a_lost_span_is_given_to_the_node_that_comes() -> None:
    story = Story()
    story.start("a", "b", "c")
    lost = story.core.state.nodes[NodeId("b")].span
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    story.settle(beating=("a", "c"))
    story.join("e")
    solve = only(story.wait(600, beating=("a", "c", "e")), fx.SolveAllocation)[-1]
    assigned = only(story.solve(solve), fx.AssignSpan)
    assert [(a.node_id, a.span) for a in assigned] == [("e", lost)]


def test_when_no_newcomer_can_fill_the_gap_idle_nodes_are_moved() -> None:
    story = Story()
    story.start("a", "b", "c", memory_mib=300)
    lost = story.core.state.nodes[NodeId("b")].span
    assert lost is not None
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    for name in ("x", "y"):  # two small ones: together they can, alone neither
        story.join(name, memory_mib=200)
    story.settle(beating=("a", "c", "x", "y"))
    view = story.core.view(story.now_ms)
    assert view.models[0].is_ready, view.models[0].advice


def test_a_node_with_a_running_request_is_never_moved() -> None:
    story = Story()
    story.start("a", memory_mib=2_000)
    story.submit("r1")
    story.join("b", memory_mib=2_000)
    effects = story.tell(ev.ReplanAsked()) + story.wait(600, beating=("a", "b"))
    solve = only(effects, fx.SolveAllocation)[0]
    assert "a" in solve.problem.fixed
    assert [a.node_id for a in only(story.solve(solve), fx.AssignSpan)] == ["b"]


def test_a_plan_made_while_nodes_were_idle_does_not_take_their_layers() -> None:
    for is_busy in (False, True):
        story = Story()
        story.start("a", "b", "c")
        effects = story.tell(ev.ReplanAsked()) + story.wait(600, beating=("a", "b", "c"))
        solve = only(effects, fx.SolveAllocation)[0]
        assert solve.problem.fixed == ()
        plan = allocate_greedy(solve.problem)
        first, middle, last = plan.placements
        swapped = (
            replace(first, node_id=last.node_id),
            middle,
            replace(last, node_id=first.node_id),
        )
        moved = replace(plan, placements=swapped, pipelines=(tuple(p.node_id for p in swapped),))
        if is_busy:
            story.submit("r1")
        effects = story.tell(ev.AllocationSolved(epoch=solve.epoch, allocation=moved))
        assert len(only(effects, fx.AssignSpan)) == (0 if is_busy else 2)


def test_a_failed_load_is_retried_with_growing_pauses_and_others_stand_in() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    pauses: list[int] = []
    for _ in range(4):
        solve = None
        waited_ms = 0
        while solve is None:
            solves = only(story.wait(100, beating=("a",)), fx.SolveAllocation)
            waited_ms += 100
            solve = solves[0] if solves else None
            assert waited_ms < 100_000
        pauses.append(waited_ms)
        assign = only(story.solve(solve), fx.AssignSpan)[0]
        story.tell(
            ev.NodeLoadFailed(
                node_id=assign.node_id,
                incarnation=1,
                epoch=assign.epoch,
                reason=Reason(code="weights_corrupt", message="sha256 differs"),
            )
        )
    assert pauses[1] < pauses[2] < pauses[3]
    assert "sha256" in story.core.view(story.now_ms).nodes[0].last_error


def test_a_node_without_the_memory_it_promised_is_offered_less() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    assign = only(story.solve(only(story.wait(600), fx.SolveAllocation)[0]), fx.AssignSpan)[0]
    story.tell(
        ev.NodeLoadFailed(
            node_id=assign.node_id,
            incarnation=1,
            epoch=assign.epoch,
            reason=Reason(code="memory_full", message="5 MiB more"),
        )
    )
    solve = only(story.wait(3_000, beating=("a",)), fx.SolveAllocation)[0]
    assert solve.problem.nodes[0].memory_bytes < 2_000 * (1 << 20)


def test_a_load_without_progress_is_given_up_but_a_slow_one_is_not() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    assign = only(story.solve(only(story.wait(600), fx.SolveAllocation)[0]), fx.AssignSpan)[0]
    for done in range(4):
        story.wait(100_000, beating=("a",))
        story.tell(
            ev.NodeLoadProgressed(
                node_id=NodeId("a"),
                incarnation=1,
                epoch=assign.epoch,
                phase="fetching",
                done_bytes=done,
                total_bytes=9,
            )
        )
    assert story.core.state.nodes[NodeId("a")].state is NodeState.LOADING
    story.wait(181_000, beating=("a",))
    assert "no progress" in story.core.state.nodes[NodeId("a")].last_error
    story.tell(loaded_event(assign))  # too late: another plan is on its way
    assert story.core.state.counters.events_ignored >= 1


def test_a_node_that_left_while_the_solver_thought_is_planned_around() -> None:
    story = Story()
    for name in ("a", "b", "c", "d"):
        story.join(name)
    solve = only(story.wait(600), fx.SolveAllocation)[0]
    story.tell(ev.NodeDetached(node_id=NodeId("a"), incarnation=1))
    for assign in only(story.solve(solve), fx.AssignSpan):
        story.load(assign)
    story.settle(beating=("b", "c", "d"))
    assert story.core.view(story.now_ms).models[0].is_ready


def test_a_loss_is_planned_for_without_being_asked() -> None:
    story = Story()
    story.start("a", "b", "c")
    story.tell(ev.NodeDetached(node_id=NodeId("b"), incarnation=1))
    solve = only(story.wait(600, beating=("a", "c")), fx.SolveAllocation)[0]
    assert solve.problem.fixed == () and len(solve.problem.held) == 2


def test_a_plan_is_not_for_a_node_that_came_back_as_another() -> None:
    story = Story()
    story.join("a", memory_mib=2_000)
    solve = only(story.wait(600), fx.SolveAllocation)[0]
    story.tell(ev.NodeDetached(node_id=NodeId("a"), incarnation=1))
    story.join("a", incarnation=2, memory_mib=100)  # it shrank meanwhile
    assert only(story.solve(solve), fx.AssignSpan) == []
    again = only(story.wait(600, beating=("a",)), fx.SolveAllocation)[0]
    assert again.problem.nodes[0].memory_bytes == 100 << 20
