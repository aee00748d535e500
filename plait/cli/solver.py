"""Plans from a process of their own: a solver that hangs is stopped, one that crashes or lies is
not believed, and a greedy plan made here without any solver takes its place, with a warning."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from plait.cli.solve_question import ClusterQuestion, PoolQuestion, Question, SharedQuestion
from plait.clock import SystemClock
from plait.computing import STILL_S, Allowance
from plait.errors import UnavailableError
from plait.types import Reason
from scheduler.allocation import Allocation, AllocationProblem, allocate_greedy
from scheduler.allocation.verify import violations
from scheduler.planning.check import pool_violations, shared_violations
from scheduler.planning.cluster import Cluster
from scheduler.planning.cluster_check import cluster_violations
from scheduler.planning.cluster_plan import ClusterPlan, plan_cluster
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import PoolPlan, plan_pool
from scheduler.planning.share import SharedPlan, share_pool

GRACE_S: Final = 5.0
"""More than the solver's own limit, all of it computing: to start, to search, to answer."""
STOP_S: Final = 2.0
LOOK_S: Final = 0.5
COMMAND: Final = (sys.executable, "-m", "plait.cli.solve_process")
SHARED_TIMES: Final = 4
"""A plan for several models is made of many: each has so little of the solver's limit, all together
have so much more."""
_Plan = TypeVar("_Plan", PoolPlan, SharedPlan, ClusterPlan, Allocation)


class _TroubleError(Exception):
    """Why the solver's answer is not used."""


class Solver:
    """Asks a fresh process for each plan. `command` replaces it, in tests."""

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        *,
        grace_s: float = GRACE_S,
        still_s: float = STILL_S,
    ) -> None:
        self._command = command
        self._grace_s = grace_s
        self._still_s = still_s

    def plan_pool(self, ground: Ground, wish: Wish) -> PoolPlan:
        """Raises UnavailableError as `plan_pool` does."""

        def check(plan: PoolPlan) -> list[str]:
            return pool_violations(ground, plan)

        def greedy(trouble: str) -> PoolPlan:
            return plan_pool(ground, wish, trouble=trouble)

        question = PoolQuestion(ground, wish)
        return self._plan(question, PoolPlan, wish.time_limit_s, check, greedy)

    def plan_shared(
        self, grounds: Sequence[Ground], parts: Sequence[float], wish: Wish
    ) -> SharedPlan:
        """Raises UnavailableError as `share_pool` does. Its many plans have the time of a few."""

        def check(plan: SharedPlan) -> list[str]:
            return shared_violations(grounds, plan.plans)

        def greedy(trouble: str) -> SharedPlan:
            def plan(ground: Ground, wish: Wish) -> PoolPlan:
                return plan_pool(ground, wish, trouble=trouble)

            return share_pool(grounds, parts, wish, plan)

        each = replace(wish, time_limit_s=wish.time_limit_s / SHARED_TIMES)
        question = SharedQuestion(tuple(grounds), tuple(parts), each)
        limit_s = SHARED_TIMES * wish.time_limit_s
        return self._plan(question, SharedPlan, limit_s, check, greedy)

    def plan_cluster(self, cluster: Cluster, wish: Wish) -> ClusterPlan:
        """Raises UnavailableError as `plan_cluster` does."""

        def check(plan: ClusterPlan) -> list[str]:
            return cluster_violations(cluster, plan, stages_max=wish.stages_max)

        def greedy(trouble: str) -> ClusterPlan:
            return plan_cluster(cluster, wish, trouble=trouble)

        question = ClusterQuestion(cluster, wish)
        return self._plan(question, ClusterPlan, wish.time_limit_s, check, greedy)

    def allocate(self, problem: AllocationProblem) -> Allocation:
        """Raises UnavailableError as `allocate` does."""

        def check(plan: Allocation) -> list[str]:
            return violations(problem, plan)

        def greedy(trouble: str) -> Allocation:
            warning = f"planned without the solver: {trouble}"
            return allocate_greedy(problem, warnings=(warning,), clock=SystemClock())

        return self._plan(problem, Allocation, problem.time_limit_s, check, greedy)

    def _plan(
        self,
        question: Question,
        kind: type[_Plan],
        limit_s: float,
        check: Callable[[_Plan], list[str]],
        greedy: Callable[[str], _Plan],
    ) -> _Plan:
        try:
            answer = self._ask(question, limit_s + self._grace_s)
            if isinstance(answer, Reason):
                raise UnavailableError(answer.message, reason=answer.code)
            if not isinstance(answer, kind):
                raise _TroubleError(f"it answered with a {type(answer).__name__}")
            try:
                wrong = check(answer)
            except Exception as error:  # the root of a foreign answer's check: it may hold anything
                raise _TroubleError(f"its answer cannot be checked: {error}") from error
            if wrong:
                raise _TroubleError(f"its plan was refused: {wrong[0]}")
        except _TroubleError as trouble:
            return greedy(str(trouble))
        return answer

    def _ask(self, question: Question, limit_s: float) -> object:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise _TroubleError(f"its process did not start: {error}") from error
        try:
            content = _answer(process, pickle.dumps(question), limit_s, self._still_s)
        finally:
            _end(process)
        if process.returncode != 0:
            raise _TroubleError(f"its process ended with {process.returncode}")
        try:
            found: object = pickle.loads(content)
        except Exception as error:  # the root of a foreign answer: pickle raises whatever it likes
            raise _TroubleError(f"its answer cannot be read: {error}") from error
        return found


def _answer(
    process: subprocess.Popen[bytes], question: bytes, limit_s: float, still_s: float
) -> bytes:
    """What it writes. Raises _TroubleError where it computes longer than that, or hangs."""
    allowance = Allowance(limit_s, process.pid, clock=SystemClock(), still_s=still_s)
    unsent: bytes | None = question
    while True:
        try:
            return process.communicate(unsent, timeout=min(LOOK_S, limit_s))[0]
        except subprocess.TimeoutExpired:
            unsent = None  # it goes on with what it was given first
            spent = allowance.spent(process.pid)
        if spent is not None:
            raise _TroubleError(
                f"it gave no plan within {spent} and was stopped; `--time-limit-s` gives it more"
            )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop it and whatever it started, if it still runs."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)  # of its own session: the same number
    else:
        process.kill()
    process.communicate(timeout=STOP_S)
