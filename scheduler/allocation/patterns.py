"""What the pattern ILP is asked and answers, apart from any solver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.types import ModelId
from scheduler.allocation.classes import NodeClass
from scheduler.allocation.columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSolution:
    """How often each column is used. `status` is "optimal" or "feasible" (out of time)."""

    uses: tuple[int, ...]
    solver: str
    status: str


class SolverFailedError(Exception):
    """A solver is missing, crashed or gave no usable answer; the message says which."""


SolvePatterns = Callable[
    [Sequence[Column], Sequence[NodeClass], frozenset[ModelId], float], PatternSolution
]
