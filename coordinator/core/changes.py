"""What plans that were carried out have moved, the last of them: for people who ask why bytes
flowed."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler.allocation.problem import Allocation, AllocationProblem

CHANGES_MAX: Final = 20


class PlanCause(StrEnum):
    """Why a plan was made: nodes came, layers or chains were lost, or somebody asked."""

    NEWCOMERS = "newcomers"
    REPAIR = "repair"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """A plan that moved something. `moved_bytes` of weights are read, of which `fetched_bytes` lay
    on nobody's disk; `moved_nodes` held others, or some, before."""

    at_ms: int
    epoch: int
    cause: PlanCause
    tokens_per_s: float
    moved_nodes: int
    moved_bytes: int
    fetched_bytes: int


class PlanChanges:
    """The last `CHANGES_MAX`, the newest first."""

    def __init__(self) -> None:
        self._changes: deque[PlanChange] = deque(maxlen=CHANGES_MAX)

    def note(
        self,
        allocation: Allocation,
        problem: AllocationProblem,
        *,
        at_ms: int,
        epoch: int,
        is_relaxed: bool,
    ) -> None:
        """A plan is carried out. One that moves nothing is no change."""
        if not allocation.moved_nodes and not allocation.moved_bytes:
            return
        asked = PlanCause.REPLAN if is_relaxed else PlanCause.NEWCOMERS
        self._changes.appendleft(
            PlanChange(
                at_ms=at_ms,
                epoch=epoch,
                cause=PlanCause.REPAIR if problem.is_repair else asked,
                tokens_per_s=allocation.objective_tokens_per_s,
                moved_nodes=allocation.moved_nodes,
                moved_bytes=allocation.moved_bytes,
                fetched_bytes=allocation.fetched_bytes,
            )
        )

    def newest(self) -> tuple[PlanChange, ...]:
        """All that are remembered."""
        return tuple(self._changes)
