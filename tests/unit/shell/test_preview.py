"""A look ahead: the question a plan would be asked, answered by a process that ends with it."""

import asyncio
import sys
from functools import partial

import pytest

from coordinator.core import effects as fx
from coordinator.core.core import Core
from coordinator.core.machines import NodeState
from coordinator.ports import Inbox
from coordinator.shell.preview import Previewer
from coordinator.shell.solve import Solver
from plait.errors import OverloadedError
from plait.types import NodeId, PipelineId
from tests.kit.inbox import ListInbox
from tests.unit.core.stories import Story, loaded_event, only
from tests.unit.shell.fakes import ALLOCATION, PROBLEM
from tests.unit.shell.test_solve import ANSWERS, HANGS


def serving_core() -> Core:
    """Three nodes that hold what they were planned to hold."""
    story = Story()
    for name in ("a", "b", "c"):
        story.join(name)
    (solve,) = only(story.wait(3_500, beating=("a", "b", "c")), fx.SolveAllocation)
    for assign in only(story.solve(solve), fx.AssignSpan):
        story.tell(loaded_event(assign, 4096))
    assert {n.state for n in story.core.state.nodes.values()} == {NodeState.SERVING}
    return story.core


def test_the_question_is_that_of_a_replan_and_leaves_no_trace() -> None:
    core = serving_core()
    previewer = Previewer(core, ListInbox())
    before = core.view(5_000)
    problem = previewer.question()
    assert problem is not None
    assert [held.node_id for held in problem.held] == ["a", "b", "c"]
    assert problem.fixed == ()
    assert core.view(5_000) == before
    for node in core.state.nodes.values():
        node.pipelines[PipelineId(1)] = None
    assert previewer.question() is None
    free = previewer.question(may_move_busy=True)
    assert free is not None and free.fixed == ()
    del core.state.nodes[NodeId("a")].pipelines[PipelineId(1)]
    half = previewer.question()
    assert half is not None and half.fixed == ("b", "c")


async def test_a_preview_comes_from_a_process_that_ends_and_posts_nothing() -> None:
    inbox, made = ListInbox(), list[Solver]()

    def new_solver(inbox: Inbox) -> Solver:
        made.append(Solver(inbox, command=(sys.executable, "-c", ANSWERS), grace_s=20.0))
        return made[-1]

    previewer = Previewer(serving_core(), inbox, new_solver=new_solver)
    preview = await previewer.preview(PROBLEM)
    assert preview.plan == ALLOCATION
    assert preview.reason is None
    assert inbox.events == []
    assert made[0].process_id is None


async def test_one_preview_at_a_time_and_who_leaves_frees_it() -> None:
    hanging = partial(Solver, command=(sys.executable, "-c", HANGS), grace_s=60.0)
    previewer = Previewer(serving_core(), ListInbox(), new_solver=hanging)
    asking = asyncio.create_task(previewer.preview(PROBLEM))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="another preview"):
        await previewer.preview(PROBLEM)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    # Free again: a second one may begin.
    again = asyncio.create_task(previewer.preview(PROBLEM))
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
