"""The pattern ILP, through PuLP: HiGHS first, CBC where HiGHS is missing or fails.

    max  sum score_p y_p + W (sum covered_m + sum called_m / M)
    s.t. sum_p count_cp y_p <= N_c      every class c
         covered_m <= sum_{p of m} y_p  every model m that has no chain yet
         y integer >= 0, covered in {0, 1}

With several models the first term is `demand.fair_score` instead, S the score that stands already:

    max  (1 - e) T + e sum score_p y_p + ...
    s.t. T share_m <= S_m + sum_{p of m} score_p y_p + B (1 - covered_m)   every model m
         called_m <= chains standing + sum_{p of m} y_p,  called_m <= chains that m is to have

The only module that imports a solver. PuLP pulls in numpy, so `allocate` imports this module when
it first needs it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pulp

from plait.types import ModelId
from scheduler.allocation.classes import NodeClass
from scheduler.allocation.columns import Column
from scheduler.allocation.demand import SURPLUS
from scheduler.allocation.patterns import PatternSolution, SolverFailedError

SOLVERS: Final = ("HiGHS", "PULP_CBC_CMD")
"""PuLP's names, in the order they are tried."""

GAP: Final = 1e-4
"""Of the most that any plan could score: so far from the optimum a search may end."""


def solve_patterns(
    columns: Sequence[Column],
    classes: Sequence[NodeClass],
    must: frozenset[ModelId],
    time_limit_s: float,
    *,
    solvers: Sequence[str] = SOLVERS,
) -> PatternSolution:
    """The best set of columns. Raises SolverFailedError where no solver gives one."""
    failures: list[str] = []
    for name in solvers:
        try:
            return _solve_with(name, columns, classes, must, time_limit_s)
        except Exception as error:  # a solver's root: whatever it throws, the next one is tried
            failures.append(f"{name}: {error}")
    raise SolverFailedError("; ".join(failures))


def _solve_with(
    name: str,
    columns: Sequence[Column],
    classes: Sequence[NodeClass],
    must: frozenset[ModelId],
    time_limit_s: float,
) -> PatternSolution:
    program = pulp.LpProblem("plait", pulp.LpMaximize)
    uses = [
        pulp.LpVariable(f"y{i:04d}", 0, _uses_max(column, classes), cat=pulp.LpInteger)
        for i, column in enumerate(columns)
    ]
    most = _score_max(columns, classes)
    planners = {c.planner.spec.model_id: c.planner for c in columns}
    most += sum(planner.standing_score for planner in planners.values())
    worth = 1.0 + 10.0 * most / min(1.0, *(p.demand_share for p in planners.values()), 1.0)
    covered = {
        model_id: pulp.LpVariable(f"covered{i:02d}", 0, 1, cat=pulp.LpInteger)
        for i, model_id in enumerate(sorted(must))
    }
    program += pulp.lpSum(
        _rate_terms(program, columns, uses, covered, most)
        + [worth * variable for variable in covered.values()]
        + [worth / (1 + len(planners)) * called for called in _called_for(program, columns, uses)]
    )
    for index, node_class in enumerate(classes):
        terms = [c.counts[index] * u for c, u in zip(columns, uses, strict=True) if c.counts[index]]
        if terms:
            program += pulp.lpSum(terms) <= len(node_class.members)
    for model_id, variable in covered.items():
        program += variable <= pulp.lpSum([use for _, use in _own(columns, uses, model_id)])
    program.solve(_solver(name, time_limit_s, gap=GAP * most))
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        status = pulp.LpStatus[program.status].lower()
        raise SolverFailedError(f"{status} within {time_limit_s:g} s")
    is_optimal = program.sol_status == pulp.LpSolutionOptimal
    return PatternSolution(
        uses=tuple(round(use.value() or 0.0) for use in uses),
        solver="highs" if name == "HiGHS" else "cbc",
        status="optimal" if is_optimal else "feasible",
    )


def _own(
    columns: Sequence[Column], uses: Sequence[pulp.LpVariable], model_id: ModelId
) -> list[tuple[Column, pulp.LpVariable]]:
    pairs = zip(columns, uses, strict=True)
    return [(c, u) for c, u in pairs if c.planner.spec.model_id == model_id]


def _rate_terms(
    program: pulp.LpProblem,
    columns: Sequence[Column],
    uses: Sequence[pulp.LpVariable],
    covered: Mapping[ModelId, pulp.LpVariable],
    most: float,
) -> list[pulp.LpAffineExpression]:
    """The score of one model; of several, the total in proportion and a little of the rest."""
    scores = [c.chain.score * use for c, use in zip(columns, uses, strict=True)]
    planners = {c.planner.spec.model_id: c.planner for c in columns}
    if len(planners) < 2:
        return scores
    total = pulp.LpVariable("total", 0, most)
    for model_id, planner in sorted(planners.items()):
        own = [c.chain.score * use for c, use in _own(columns, uses, model_id)]
        slack = most * (1 - covered[model_id]) if model_id in covered else 0
        program += planner.demand_share * total <= pulp.lpSum(own) + planner.standing_score + slack
    return [(1.0 - SURPLUS) * total, *(SURPLUS * score for score in scores)]


def _called_for(
    program: pulp.LpProblem, columns: Sequence[Column], uses: Sequence[pulp.LpVariable]
) -> list[pulp.LpVariable]:
    """Chains that models are to have, as far as they get them; none where one each is enough."""
    planners = {c.planner.spec.model_id: c.planner for c in columns if c.planner.chains_min > 1}
    called: list[pulp.LpVariable] = []
    for at, (model_id, planner) in enumerate(sorted(planners.items())):
        variable = pulp.LpVariable(f"called{at:02d}", 0, planner.chains_min)
        own = [use for _, use in _own(columns, uses, model_id)]
        program += variable <= pulp.lpSum(own) + planner.num_standing
        called.append(variable)
    return called


def _solver(name: str, time_limit_s: float, *, gap: float) -> pulp.LpSolver:
    """One thread and a fixed seed: the same question has the same answer. `gap` is in scores: a
    share of an objective that counts cover far above rates would be more than whole chains."""
    if name == "HiGHS":
        return pulp.HiGHS(
            msg=False, threads=1, timeLimit=time_limit_s, gapRel=0.0, gapAbs=gap, random_seed=1
        )
    if name != "PULP_CBC_CMD":
        raise SolverFailedError("no such solver")
    return pulp.PULP_CBC_CMD(
        msg=False,
        threads=1,
        timeLimit=max(1, round(time_limit_s)),
        gapRel=0.0,
        gapAbs=gap,
        options=["randomS 1"],
    )


def _score_max(columns: Sequence[Column], classes: Sequence[NodeClass]) -> float:
    """No plan scores more: every node with its part of the best chain that has one of its class."""
    parts = [(c.chain.score / sum(c.counts), c.counts) for c in columns]
    return sum(
        len(node_class.members) * max((part for part, counts in parts if counts[at]), default=0.0)
        for at, node_class in enumerate(classes)
    )


def _uses_max(column: Column, classes: Sequence[NodeClass]) -> int:
    return min(
        len(c.members) // count
        for c, count in zip(classes, column.counts, strict=True)
        if count > 0
    )
