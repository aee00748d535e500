"""The restricted master LP of column generation, kept warm between rounds.

PuLP builds a program anew each time; here columns join a program that HiGHS has solved already.
"""

import importlib
import math
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

    def __init__(self, sizes: Sequence[int], *, time_limit_s: float) -> None:
        """`sizes` are the members of each class. Raises NoSolverError where HiGHS is missing."""
        try:
            module = importlib.import_module("highspy")
        except ImportError as error:
            raise NoSolverError(str(error)) from error
        self._highs: _Highs = module.Highs()
        self._count = len(sizes)
        options: dict[str, object] = {
            "output_flag": False,
            "threads": 1,
            "random_seed": 1,
            "time_limit": time_limit_s,
        }
        for name, value in options.items():
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
        try:
            self._highs.run()
            value = -float(self._highs.getInfo().objective_function_value)
            prices = [abs(float(dual)) for dual in self._highs.getSolution().row_dual]
        except Exception as error:  # a solver's root: whatever it throws, plans go on without it
            raise NoSolverError(f"HiGHS: {error}") from error
        if len(prices) != self._count or not math.isfinite(value + sum(prices)):
            raise NoSolverError("HiGHS gave no prices")
        return value, prices
