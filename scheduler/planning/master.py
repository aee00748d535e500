"""The restricted master LP of column generation, kept warm between rounds.

PuLP builds a program anew each time; here columns join a program that HiGHS has solved already.
"""

import importlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from scheduler.planning.pack import NoSolverError
from scheduler.planning.patterns import Pattern


class _Solution(Protocol):
    row_dual: Sequence[float]


class _Info(Protocol):
    objective_function_value: float


class _Highs(Protocol):
    """What is used of highspy."""

    def setOptionValue(self, name: str, value: object) -> object: ...  # noqa: N802
    def addRow(self, low: float, high: float, count: int, at: object, by: object) -> object: ...  # noqa: N802
    def addCol(  # noqa: N802
        self, cost: float, low: float, high: float, count: int, at: object, by: object
    ) -> object: ...
    def run(self) -> object: ...
    def getSolution(self) -> _Solution: ...  # noqa: N802
    def getInfo(self) -> _Info: ...  # noqa: N802


class Master:
    """max sum X_p y_p, sum a_cp y_p <= N_c, y >= 0, over the patterns that have joined."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes` are the members of each class. Raises NoSolverError where HiGHS is missing."""
        try:
            module = importlib.import_module("highspy")
        except ImportError as error:
            raise NoSolverError(str(error)) from error
        self._highs: _Highs = module.Highs()
        self._count = len(sizes)
        for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 1)):
            self._highs.setOptionValue(name, value)
        nothing = np.array([], dtype=np.int32), np.array([], dtype=np.float64)
        for size in sizes:
            self._highs.addRow(-np.inf, float(size), 0, *nothing)

    def join(self, patterns: Sequence[Pattern]) -> None:
        """Add columns."""
        for pattern in patterns:
            uses = pattern.uses()
            at = np.array(list(uses), dtype=np.int32)
            by = np.array(list(uses.values()), dtype=np.float64)
            self._highs.addCol(-pattern.rate, 0.0, np.inf, len(at), at, by)

    def solve(self) -> tuple[float, list[float]]:
        """The LP's value and the price of each class."""
        self._highs.run()
        value = -self._highs.getInfo().objective_function_value
        duals = self._highs.getSolution().row_dual
        if len(duals) != self._count:
            raise NoSolverError("HiGHS gave no prices")
        return value, [abs(float(dual)) for dual in duals]
