"""The replica-pattern ILP, through PuLP: HiGHS first, CBC behind it.

    max  sum X_p y_p    s.t.  sum_p a_cp y_p <= N_c for every class c,  y integer >= 0

Its LP relaxation is the bound that is reported, its duals say what one more node is worth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pulp

from scheduler.planning.kinds import MachineClass
from scheduler.planning.patterns import Pattern

SOLVERS: Final = ("HiGHS", "PULP_CBC_CMD")
GAP_LEAST: Final = 1e-4
GAP_MOST: Final = 5e-3
GAP_SHARE: Final = 0.25
"""The search ends when this share of what the known packing misses may still be missing."""
NODES_MAX: Final = 1000
"""Branches at most: a limit that does not depend on the machine's speed."""


class NoSolverError(Exception):
    """No solver gave a usable answer; the message says what each of them said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How often each pattern is used; `prices` are the LP's duals per class, tokens/s a node."""

    uses: tuple[int, ...]
    lp_bound: float
    prices: tuple[float, ...]
    solver: str
    status: str


def pack(
    patterns: Sequence[Pattern],
    classes: Sequence[MachineClass],
    *,
    time_limit_s: float,
    carried: float = 0.0,
    gap: float = 0.0,
    solvers: Sequence[str] = SOLVERS,
) -> Packing:
    """The best packing, where one of `carried` tokens/s is known already and a share `gap` of the
    best may be missing. Raises NoSolverError."""
    said: list[str] = []
    for name in solvers:
        try:
            return _pack_with(name, patterns, classes, time_limit_s, carried, gap)
        except Exception as error:  # a solver's root: whatever it throws, the next one is tried
            said.append(f"{name}: {error}")
    raise NoSolverError("; ".join(said))


def relax(
    patterns: Sequence[Pattern], classes: Sequence[MachineClass], *, time_limit_s: float
) -> tuple[float, tuple[float, ...]]:
    """The LP's bound and its duals. Raises NoSolverError."""
    if not patterns:
        return 0.0, (0.0,) * len(classes)
    program, _, rows = _program(patterns, classes, is_whole=False)
    said: list[str] = []
    for name in SOLVERS:
        try:
            program.solve(_solver(name, time_limit_s, gap=0.0))
            break
        except Exception as error:  # a solver's root: whatever it throws, the next one is tried
            said.append(f"{name}: {error}")
    else:
        raise NoSolverError("; ".join(said))
    bound = float(pulp.value(program.objective) or 0.0)
    # Signs differ between solvers; more nodes never carry less.
    prices = [abs(float(row.pi or 0.0)) if row is not None else 0.0 for row in rows]
    return bound, tuple(prices)


def greedy_packing(patterns: Sequence[Pattern], classes: Sequence[MachineClass]) -> Packing:
    """The patterns that carry most per machine first, as often as there are machines."""
    left = [len(c.members) for c in classes]
    uses = [0] * len(patterns)
    ranked = sorted(
        range(len(patterns)),
        key=lambda i: (-patterns[i].rate / len(patterns[i].order), patterns[i].order),
    )
    for at in ranked:
        own = patterns[at].uses()
        uses[at] = min(left[index] // count for index, count in own.items())
        for index, count in own.items():
            left[index] -= uses[at] * count
    return Packing(
        uses=tuple(uses),
        lp_bound=math.inf,
        prices=(0.0,) * len(classes),
        solver="greedy",
        status="feasible",
    )


def _pack_with(
    name: str,
    patterns: Sequence[Pattern],
    classes: Sequence[MachineClass],
    time_limit_s: float,
    carried: float,
    gap: float,
) -> Packing:
    bound, prices = relax(patterns, classes, time_limit_s=time_limit_s)
    missing = GAP_SHARE * (1.0 - carried / bound) if 0.0 < carried < bound else 0.0
    gap = max(gap, GAP_LEAST, min(GAP_MOST, missing))
    kept = _able(patterns, classes, bound, prices, carried)
    program, uses, _ = _program([patterns[i] for i in kept], classes, is_whole=True)
    program.solve(_solver(name, time_limit_s, gap=gap))
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        status = pulp.LpStatus[program.status].lower()
        raise NoSolverError(f"{status} within {time_limit_s:g} s")
    times = [0] * len(patterns)
    for index, use in zip(kept, uses, strict=True):
        times[index] = round(use.value() or 0.0)
    return Packing(
        uses=tuple(times),
        lp_bound=bound,
        prices=prices,
        solver="highs" if name == "HiGHS" else "cbc",
        status="optimal" if program.sol_status == pulp.LpSolutionOptimal else "feasible",
    )


def _able(
    patterns: Sequence[Pattern],
    classes: Sequence[MachineClass],
    bound: float,
    prices: Sequence[float],
    carried: float,
) -> list[int]:
    """Patterns that a packing better than the known one may use: one use of a pattern costs the
    bound its reduced cost."""
    greedy = greedy_packing(patterns, classes)
    known = sum(use * p.rate for use, p in zip(greedy.uses, patterns, strict=True))
    slack = bound - max(known, carried) + 1e-6 * bound
    able: list[int] = []
    for index, (pattern, use) in enumerate(zip(patterns, greedy.uses, strict=True)):
        missing = sum(prices[c] for c in pattern.order) - pattern.rate
        if missing <= slack or use:
            able.append(index)
    return able


def _program(
    patterns: Sequence[Pattern], classes: Sequence[MachineClass], *, is_whole: bool
) -> tuple[pulp.LpProblem, list[pulp.LpVariable], list[pulp.LpConstraint | None]]:
    program = pulp.LpProblem("plait", pulp.LpMaximize)
    kind = pulp.LpInteger if is_whole else pulp.LpContinuous
    uses = [pulp.LpVariable(f"y{i:05d}", 0, None, cat=kind) for i in range(len(patterns))]
    program += pulp.LpAffineExpression(
        [(use, pattern.rate) for use, pattern in zip(uses, patterns, strict=True)]
    )
    terms: list[list[tuple[pulp.LpVariable, float]]] = [[] for _ in classes]
    for use, pattern in zip(uses, patterns, strict=True):
        for index, count in pattern.uses().items():
            terms[index].append((use, count))
    rows: list[pulp.LpConstraint | None] = []
    for index, own in enumerate(terms):
        if not own:
            rows.append(None)
            continue
        row = pulp.LpAffineExpression(own) <= len(classes[index].members)
        program.addConstraint(row, f"c{index:04d}")
        rows.append(row)
    return program, uses, rows


def _solver(name: str, time_limit_s: float, *, gap: float) -> pulp.LpSolver:
    """One thread and a fixed seed: the same question has the same answer."""
    if name == "HiGHS":
        return pulp.HiGHS(
            msg=False,
            threads=1,
            timeLimit=time_limit_s,
            gapRel=gap,
            random_seed=1,
            mip_max_nodes=NODES_MAX,
        )
    limit = max(1, round(time_limit_s))
    return pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=limit, gapRel=gap)
