"""The solver's own process: `python -m coordinator.shell.solve_process`.

Questions come on standard input and answers go to standard output, each as 8 bytes of length and a
pickle; both ends are the same program on the same machine. Solvers print from C, so what they
write to standard output goes nowhere.
"""

import os
import pickle
import sys
from dataclasses import replace
from typing import BinaryIO, Final

from plait.clock import SystemClock
from plait.computing import busyness
from plait.errors import PlaitError
from plait.types import Reason
from scheduler.allocation import allocate, allocate_greedy
from scheduler.allocation.problem import Allocation, AllocationProblem
from scheduler.allocation.remedy import shortages
from scheduler.allocation.shortage import Shortage

LENGTH_BYTES: Final = 8
Question = tuple[AllocationProblem, str | None]
"""The problem, and why the solver is not to be tried (None: try it)."""
Answer = tuple[Allocation | Reason, tuple[Shortage, ...]]
"""A plan, or why there is none; and what models lack that it does not cover."""


def solve(problem: AllocationProblem, trouble: str | None) -> Answer:
    """The plan, or why there is none. With `trouble` a greedy plan that warns of it."""
    try:
        if trouble is None:
            # Solvers count seconds that pass: on a busy machine they have more of them.
            limit_s = busyness() * problem.time_limit_s
            plan = allocate(replace(problem, time_limit_s=limit_s), clock=SystemClock())
        else:
            plan = allocate_greedy(problem, warnings=(trouble,), clock=SystemClock())
    except PlaitError as error:
        reason = Reason(code=error.code, message=error.message)
        return reason, shortages(problem, None)
    return plan, shortages(problem, plan)


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while (content := _read(sys.stdin.buffer)) is not None:
        question: Question = pickle.loads(content)
        payload = pickle.dumps(solve(*question))
        answers.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
        answers.flush()


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    return stream.read(int.from_bytes(header, "big"))


if __name__ == "__main__":
    main()
