"""The stage-pattern ILP: equal spans side by side, one stage after the other.

For a rate F a column is (k, least multiset of classes whose throughputs with k layers add up to
F): all of its nodes hold the same k layers. The ILP picks columns of L layers in all:
    min  sum y    s.t.  sum k y = L,   sum m_c y <= N_c,   sum y <= M,   y integer >= 0
and F is found by halving. The result is a placement whose every way has the same stages.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pulp

from scheduler.planning.pack import SOLVERS, NoSolverError

HALVINGS_MAX: Final = 24
COLUMNS_MAX: Final = 4000
PRECISION: Final = 2e-4


@dataclass(frozen=True, slots=True)
class Stage:
    """`members[c]` nodes of class c, all with the same `num_layers`; `rate` of all together."""

    num_layers: int
    members: tuple[int, ...]
    rate: float
    region: int = 0


@dataclass(frozen=True, slots=True)
class Crossings:
    """So many times the way goes from one region to another, over links of `link_rate` each."""

    count: int
    link_rate: float

    def at(self, rate: float) -> tuple[int, int]:
        """How many stages need how many nodes: the stage at the other end may be one node."""
        return self.count, math.ceil(rate / self.link_rate)


Limits = tuple[int | None, tuple[int, int] | None]
"""The most stages; how many of them need how many nodes."""


def best_stages(
    tables: Sequence[Mapping[int, float]],
    counts: Sequence[int],
    regions: Sequence[int],
    num_layers: int,
    *,
    stages_max: int | None,
    rate_min: float,
    rate_max: float,
    time_limit_s: float,
    crossings: Crossings | None = None,
) -> list[Stage]:
    """Stages with the largest rate found, each within a region; empty where none fit. With
    `crossings`, enough of them have nodes for all the links that a crossing takes.

    Raises NoSolverError.
    """
    best: list[Stage] = []
    low, high = rate_min, rate_max * (1.0 + PRECISION)
    for _ in range(HALVINGS_MAX):
        if high - low <= PRECISION * high:
            break
        rate = (low + high) / 2
        wide = None if crossings is None else crossings.at(rate)
        columns = stage_columns(tables, counts, regions, rate, size=wide[1] if wide else 0)
        found = _choose(columns, counts, num_layers, (stages_max, wide), time_limit_s)
        if found:
            best, low = found, min(stage.rate for stage in found)
        else:
            high = rate
    return best


def stage_columns(
    tables: Sequence[Mapping[int, float]],
    counts: Sequence[int],
    regions: Sequence[int],
    rate: float,
    *,
    size: int = 0,
) -> list[Stage]:
    """Least multisets within a region that carry `rate`, for every number of layers; and those of
    `size` nodes whether they are least or not."""
    columns: list[Stage] = []
    for region in sorted(set(regions)):
        own = [c for c, r in enumerate(regions) if r == region]
        for k in sorted({k for c in own for k in tables[c]}):
            fitting = [c for c in own if k in tables[c]]
            ranges = [range(counts[c] + 1) for c in fitting]
            for picked in itertools.product(*ranges):
                total = sum(n * tables[c][k] for n, c in zip(picked, fitting, strict=True))
                if total < rate or len(columns) >= COLUMNS_MAX:
                    continue
                slack = total - rate
                must_be_least = sum(picked) != size
                if must_be_least and any(
                    n and tables[c][k] <= slack for n, c in zip(picked, fitting, strict=True)
                ):
                    continue
                members = [0] * len(counts)
                for n, c in zip(picked, fitting, strict=True):
                    members[c] = n
                columns.append(Stage(k, tuple(members), total, region))
    return columns


def _choose(
    columns: Sequence[Stage],
    counts: Sequence[int],
    num_layers: int,
    limits: Limits,
    time_limit_s: float,
) -> list[Stage]:
    """Fewest stages of `num_layers` in all; empty where there are none."""
    if not columns:
        return []
    said: list[str] = []
    for name in SOLVERS:
        try:
            return _choose_with(name, columns, counts, num_layers, limits, time_limit_s)
        except Exception as error:  # a solver's root: whatever it throws, the next one is tried
            said.append(f"{name}: {error}")
    raise NoSolverError("; ".join(said))


def _choose_with(
    name: str,
    columns: Sequence[Stage],
    counts: Sequence[int],
    num_layers: int,
    limits: Limits,
    time_limit_s: float,
) -> list[Stage]:
    stages_max, wide = limits
    program = pulp.LpProblem("stages", pulp.LpMinimize)
    uses = [pulp.LpVariable(f"y{i:05d}", 0, None, cat=pulp.LpInteger) for i in range(len(columns))]
    program += pulp.LpAffineExpression([(use, 1) for use in uses])
    whole = [(use, column.num_layers) for use, column in zip(uses, columns, strict=True)]
    program += pulp.LpAffineExpression(whole) == num_layers
    for c, count in enumerate(counts):
        terms = [(u, s.members[c]) for u, s in zip(uses, columns, strict=True) if s.members[c]]
        if terms:
            program += pulp.LpAffineExpression(terms) <= count
    if stages_max is not None:
        program += pulp.LpAffineExpression([(use, 1) for use in uses]) <= stages_max
    if wide is not None:
        terms = [(u, 1) for u, s in zip(uses, columns, strict=True) if sum(s.members) >= wide[1]]
        program += pulp.LpAffineExpression(terms) >= wide[0]
    if name == "HiGHS":
        solver = pulp.HiGHS(msg=False, threads=1, timeLimit=time_limit_s, random_seed=1)
    else:
        solver = pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=max(1, round(time_limit_s)))
    program.solve(solver)
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return []
    found = [
        column
        for use, column in zip(uses, columns, strict=True)
        for _ in range(round(use.value() or 0.0))
    ]
    # A solver may lie: what it says is counted again.
    is_whole = sum(s.num_layers for s in found) == num_layers
    is_within = all(sum(s.members[c] for s in found) <= n for c, n in enumerate(counts))
    if not (is_whole and is_within):
        raise NoSolverError("its answer does not add up")
    return found
