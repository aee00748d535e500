"""A solver's process that misbehaves: `python bad_solver.py HOW`, a question on standard input."""

import os
import pickle
import signal
import sys
from dataclasses import replace

from plait.cli.solve_question import answer
from scheduler.planning.share import SharedPlan


def main(how: str) -> None:
    """Answer badly."""
    question = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # solvers print from C
    if how == "hangs":
        signal.pause()
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "crashes":
        raise SystemExit(3)
    content = b"no pickle"
    if how == "answers another question":
        content = pickle.dumps(["no", "plan"])
    elif how == "lies":
        content = pickle.dumps(_lie(answer(question)))
    elif how == "is odd":
        plan = answer(question)
        field = {"PoolPlan": "chains", "ClusterPlan": "spans", "Allocation": "placements"}
        content = pickle.dumps(replace(plan, **{field[type(plan).__name__]: (7,)}))  # type: ignore[arg-type]
    with answers:
        answers.write(content)


def _lie(plan: object) -> object:
    """More tokens than there are."""
    if isinstance(plan, SharedPlan):
        return replace(plan, plans=tuple(replace(own, rate_per_s=1e9) for own in plan.plans))
    doubled = {"PoolPlan": "rate_per_s", "ClusterPlan": "flow_per_s"}
    field = doubled.get(type(plan).__name__, "objective_tokens_per_s")
    return replace(plan, **{field: 1e9})  # type: ignore[type-var]


if __name__ == "__main__":
    main(sys.argv[1])
