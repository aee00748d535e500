"""Plans that are only looked at: asked of a solver's process of their own, which ends with them."""

import asyncio
from collections.abc import Callable

from coordinator.core.core import Core
from coordinator.core.effects import SolveAllocation
from coordinator.core.planning import question_of_replan
from coordinator.ports import Inbox, PlanPreview
from coordinator.shell.solve import Solver
from plait.errors import OverloadedError
from plait.types import Reason
from scheduler.allocation.problem import AllocationProblem

EPOCH = 0
"""No plan that is asked for has it."""


class Previewer:
    """A `coordinator.ports.PlanPreviewer`. The process that plans for the network is not disturbed:
    one preview at a time, each in a process that ends with it."""

    def __init__(
        self, core: Core, inbox: Inbox, *, new_solver: Callable[[Inbox], Solver] = Solver
    ) -> None:
        self._core = core
        self._inbox = inbox
        self._new_solver = new_solver
        self._is_busy = False

    def question(self, *, may_move_busy: bool = False) -> AllocationProblem | None:
        """What asking for a plan would ask by now. Reads the core on the loop's own thread."""
        return question_of_replan(self._core.state, may_move_busy=may_move_busy)

    async def preview(self, problem: AllocationProblem) -> PlanPreview:
        """The planner's answer. Raises OverloadedError while another preview is being made."""
        if self._is_busy:
            raise OverloadedError(
                "another preview is being made: try again in a few seconds", reason="preview_busy"
            )
        self._is_busy = True
        solver = self._new_solver(self._inbox)
        try:
            answer, _ = await solver.solve(SolveAllocation(epoch=EPOCH, problem=problem))
        finally:
            self._is_busy = False
            # Whoever asked may have gone: the process goes all the same.
            await asyncio.shield(solver.stop())
        if isinstance(answer, Reason):
            return PlanPreview(plan=None, reason=answer)
        return PlanPreview(plan=answer, reason=None)
