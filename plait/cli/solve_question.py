"""What `plait plan` asks a solver's process, and its answer."""

from dataclasses import dataclass, replace

from plait.clock import SystemClock
from plait.errors import PlaitError
from plait.types import Reason
from scheduler.allocation import Allocation, AllocationProblem, allocate
from scheduler.allocation.remedy import explained
from scheduler.planning.cluster import Cluster
from scheduler.planning.cluster_plan import ClusterPlan, plan_cluster
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import PoolPlan, plan_pool
from scheduler.planning.share import SharedPlan, share_pool


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


@dataclass(frozen=True, slots=True)
class SharedQuestion:
    """A pool of nominal figures as each of several models sees it, and what each is asked for."""

    grounds: tuple[Ground, ...]
    parts: tuple[float, ...]
    wish: Wish


Question = PoolQuestion | SharedQuestion | ClusterQuestion | AllocationProblem
Plan = PoolPlan | SharedPlan | ClusterPlan | Allocation
Answer = Plan | Reason


def prolonged(question: Question, times: float) -> Question:
    """The same question with a limit so many times as long."""
    if isinstance(question, AllocationProblem):
        return replace(question, time_limit_s=times * question.time_limit_s)
    wish = replace(question.wish, time_limit_s=times * question.wish.time_limit_s)
    return replace(question, wish=wish)


def answer(question: Question) -> Answer:
    """The plan, or why there is none."""
    try:
        if isinstance(question, PoolQuestion):
            return plan_pool(question.ground, question.wish)
        if isinstance(question, SharedQuestion):
            return share_pool(question.grounds, question.parts, question.wish, plan_pool)
        if isinstance(question, ClusterQuestion):
            return plan_cluster(question.cluster, question.wish)
        return allocate(question, clock=SystemClock())
    except PlaitError as error:
        message = error.message
        if isinstance(question, AllocationProblem) and error.code == "not_enough_memory":
            message = explained(question)
        return Reason(code=error.code, message=message)
