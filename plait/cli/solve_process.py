"""A process that answers one question: `python -m plait.cli.solve_process`.

A pickled question on standard input, a pickled answer on standard output; both ends are the same
program on the same machine. Solvers print from C, so what they write goes nowhere.
"""

import os
import pickle
import sys

from plait.cli.solve_question import Question, answer, prolonged
from plait.computing import busyness


def main() -> None:
    """Answer one question."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with answers:
        question: Question = pickle.load(sys.stdin.buffer)
        # Solvers count seconds that pass: on a busy machine they have more of them.
        pickle.dump(answer(prolonged(question, busyness())), answers)


if __name__ == "__main__":
    main()
