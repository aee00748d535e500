"""What `plait plan` asks a solver's process, and its answer."""

from dataclasses import dataclass

from plait.clock import SystemClock
from plait.errors import PlaitError
from plait.types import Reason
from scheduler.allocation import Allocation, AllocationProblem, allocate
from scheduler.allocation.remedy import explained
from scheduler.planning.cluster import Cluster
from scheduler.planning.cluster_plan import ClusterPlan, plan_cluster
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import PoolPlan, plan_pool


@dataclass(frozen=True, slots=True)
class PoolQuestion:
    """A pool of nominal figures."""

    ground: Ground
    wish: Wish


@dataclass(frozen=True, slots=True)
class ClusterQuestion:
    """A cluster of measured throughput."""

    cluster: Cluster
    wish: Wish


Question = PoolQuestion | ClusterQuestion | AllocationProblem
Plan = PoolPlan | ClusterPlan | Allocation
Answer = Plan | Reason


def answer(question: Question) -> Answer:
    """The plan, or why there is none."""
    try:
        if isinstance(question, PoolQuestion):
            return plan_pool(question.ground, question.wish)
        if isinstance(question, ClusterQuestion):
            return plan_cluster(question.cluster, question.wish)
        return allocate(question, clock=SystemClock())
    except PlaitError as error:
        message = error.message
        if isinstance(question, AllocationProblem) and error.code == "not_enough_memory":
            message = explained(question)
        return Reason(code=error.code, message=message)
