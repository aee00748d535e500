"""The solver's own process: `python -m coordinator.shell.solve_process`.

Questions come on standard input and answers go to standard output, each as 8 bytes of length and a
pickle; both ends are the same program on the same machine. Solvers print from C, so standard
output is kept for answers and everything else is sent to standard error.
"""

import os
import pickle
import sys
from typing import BinaryIO, Final

from plait.errors import PlaitError
from plait.types import Reason
from scheduler.allocation import allocate
from scheduler.allocation.problem import Allocation, AllocationProblem

LENGTH_BYTES: Final = 8
Answer = Allocation | Reason


def solve(problem: AllocationProblem) -> Answer:
    """The plan, or why there is none."""
    try:
        return allocate(problem)
    except PlaitError as error:
        return Reason(code=error.code, message=error.message)


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (question := _read(sys.stdin.buffer)) is not None:
        problem: AllocationProblem = pickle.loads(question)
        payload = pickle.dumps(solve(problem))
        answers.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
        answers.flush()


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    return stream.read(int.from_bytes(header, "big"))


if __name__ == "__main__":
    main()
