"""Phase 1: which node holds which layers. Pure; `allocate` may take seconds."""

from scheduler.allocation.allocate import allocate, allocate_greedy
from scheduler.allocation.problem import Allocation, AllocationProblem, Placement
from scheduler.allocation.verify import violations

__all__ = [
    "Allocation",
    "AllocationProblem",
    "Placement",
    "allocate",
    "allocate_greedy",
    "violations",
]
