"""A process that answers one question: `python -m plait.cli.solve_process`.

A pickled question on standard input, a pickled answer on standard output; both ends are the same
program on the same machine. Solvers print from C, so what they write goes nowhere.
"""

import os
import pickle
import sys

from plait.cli.solve_question import answer


def main() -> None:
    """Answer one question."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with answers:
        pickle.dump(answer(pickle.load(sys.stdin.buffer)), answers)


if __name__ == "__main__":
    main()
