"""Phase 1's front door: who holds which layers."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from plait.clock import Clock, SystemClock
from plait.errors import UnavailableError
from plait.types import ModelId, NodeId
from scheduler.allocation.bound import rate_bound
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.chooser import IlpChooser
from scheduler.allocation.classes import EXACT_NODES_MAX
from scheduler.allocation.donors import (
    donor_draft,
    gain_draft,
    is_better_by,
    is_clearly_better,
    lowers,
)
from scheduler.allocation.draft import ChainChooser, Draft, draft_plan, greedy_chooser
from scheduler.allocation.moves import moved
from scheduler.allocation.patterns import SolvePatterns
from scheduler.allocation.problem import Allocation, AllocationProblem, Placement
from scheduler.allocation.verify import violations
from scheduler.allocation.warm import warm_draft

NEARLY: Final = 1.02
"""A plan that moves one replica is good enough where moving all is worth at most this much more."""


def allocate_greedy(
    problem: AllocationProblem, *, warnings: tuple[str, ...] = (), clock: Clock | None = None
) -> Allocation:
    """A plan without a solver, in milliseconds.

    Raises UnavailableError(reason="not_enough_memory").
    """
    started_ms = clock.monotonic_ms() if clock is not None else 0
    planners = _planners(problem)
    draft = _stable_draft(problem, planners, greedy_chooser, _Donors(problem, planners))
    draft = _warmed(problem, planners, draft, greedy_chooser)
    ended_ms = clock.monotonic_ms() if clock is not None else 0
    return _finish(
        problem, draft, "greedy", "feasible", warnings=warnings, solve_ms=ended_ms - started_ms
    )


def allocate(
    problem: AllocationProblem,
    *,
    clock: Clock | None = None,
    solve: SolvePatterns | None = None,
) -> Allocation:
    """The best plan found within `problem.time_limit_s`; see docs/scheduling.md.

    `clock` measures `solve_ms` and nothing else; `solve` replaces PuLP's solvers. Where the solver
    is missing, fails or lies, the plan is the greedy one and says so in its warnings.

    Raises UnavailableError(reason="not_enough_memory") where no model fits: the message names
    layers and memory; `remedy` says what would help.
    """
    watch = clock if clock is not None else SystemClock()
    started_ms = watch.monotonic_ms()
    try:
        chooser = IlpChooser(solve if solve is not None else _pulp(), problem.time_limit_s / 2)
    except ImportError as error:
        warning = f"planned without the solver: {error}"
        return allocate_greedy(problem, warnings=(warning,), clock=watch)
    planners = _planners(problem)
    donors = _Donors(problem, planners)
    draft = _stable_draft(problem, planners, chooser, donors)
    # Spare nodes complete further chains, which the ILP does not see: compare whole plans.
    solver, status = chooser.solver, chooser.status
    rival = _stable_draft(problem, planners, chooser.greedy, donors)
    if rival.worth() > draft.worth():
        draft, solver, status = rival, "greedy", "feasible"
    if solve is None and len(planners) == 1 and len(problem.nodes) > EXACT_NODES_MAX:
        planned = _planned(problem.time_limit_s / 4)
        whole = _draft_or_none(problem, planners, planned, donors)
        if whole is not None and whole.worth() > draft.worth():
            draft, solver, status = whole, planned.solver, planned.status
    warm = _warmed(problem, planners, draft, chooser.greedy)
    if warm is not draft:
        draft, solver, status = warm, "greedy", "feasible"
    plan = _finish(
        problem,
        draft,
        solver,
        status,
        warnings=chooser.warnings,
        solve_ms=watch.monotonic_ms() - started_ms,
    )
    wrong = violations(problem, plan)
    if wrong:
        warning = f"the solver's plan was refused: {wrong[0]}"
        return allocate_greedy(problem, warnings=(warning,), clock=watch)
    return plan


def _pulp() -> SolvePatterns:
    """Imported when first needed: PuLP brings numpy, which the coordinator's core must not."""
    module = importlib.import_module("scheduler.allocation.solver")
    solve: SolvePatterns = module.solve_patterns
    return solve


class PoolChooser(Protocol):
    """What is used of `planned.PlannedChooser`."""

    solver: str
    status: str

    def __call__(
        self, planners: Sequence[ChainPlanner], free: Sequence[NodeId], must: frozenset[ModelId]
    ) -> list[tuple[ChainPlanner, Chain]]: ...


def _planned(time_limit_s: float) -> PoolChooser:
    """Imported when first needed, as the solver is."""
    module = importlib.import_module("scheduler.allocation.planned")
    chooser: PoolChooser = module.PlannedChooser(time_limit_s)
    return chooser


def _planners(problem: AllocationProblem) -> tuple[ChainPlanner, ...]:
    if not problem.models:
        raise UnavailableError("no model to plan for", reason="not_enough_memory")
    return tuple(ChainPlanner(problem, spec) for spec in problem.models)


class _Donors:
    """The best plan with one donor, worked out when first asked for."""

    def __init__(self, problem: AllocationProblem, planners: tuple[ChainPlanner, ...]) -> None:
        self._problem, self._planners = problem, planners
        self._known: list[Draft | None] = []

    def draft(self, held: Mapping[NodeId, Placement]) -> Draft | None:
        """None where none is possible."""
        if not self._known:
            found = donor_draft(self._problem, self._planners, held, greedy_chooser)
            self._known.append(found)
        return self._known[0]


def _stable_draft(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    choose: ChainChooser,
    donors: _Donors,
) -> Draft:
    """The plan that moves nothing held, unless one that moves a replica is worth clearly more, or
    one that moves all again."""
    held = _usable_held(problem, planners)
    fixed = {n: p for n, p in held.items() if n in problem.fixed}
    if len(held) == len(fixed):
        return draft_plan(planners, fixed, choose)
    kept: Draft | None
    try:
        kept = draft_plan(planners, held, choose)
    except UnavailableError:
        kept = None
    donor = donors.draft(held)
    few = kept
    if kept is None or (
        donor is not None and is_clearly_better(donor, kept) and not lowers(donor, kept)
    ):
        few = donor
    if problem.is_repair and few is not None:
        gained = gain_draft(problem, planners, held, few, choose) if few is kept else None
        return few if gained is None else gained
    try:
        fresh = draft_plan(planners, fixed, choose)
    except UnavailableError:
        if few is None:
            raise
        return few
    if few is None or is_clearly_better(fresh, few):
        return fresh
    # One donor gives most of what moving everything would; where it does not quite, all may move.
    is_behind = is_better_by(fresh, few, NEARLY)
    return fresh if is_behind and (kept is None or is_clearly_better(fresh, kept)) else few


def _warmed(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    draft: Draft,
    choose: ChainChooser,
) -> Draft:
    """The plan that uses what is on nodes' disks, where that is worth it."""
    if not problem.cached:
        return draft
    return warm_draft(problem, planners, _usable_held(problem, planners), draft, choose)


def _draft_or_none(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    choose: ChainChooser,
    donors: _Donors,
) -> Draft | None:
    """A rival plan may find nothing where others did."""
    try:
        return _stable_draft(problem, planners, choose, donors)
    except UnavailableError:
        return None


def _usable_held(
    problem: AllocationProblem, planners: tuple[ChainPlanner, ...]
) -> Mapping[NodeId, Placement]:
    layers = {p.spec.model_id: p.spec.num_layers for p in planners}
    known = {p.node_id for p in problem.nodes}
    return {
        p.node_id: p
        for p in problem.held
        if p.node_id in known and p.span.end <= layers.get(p.model_id, 0)
    }


def _finish(
    problem: AllocationProblem,
    draft: Draft,
    solver: str,
    status: str,
    *,
    warnings: tuple[str, ...],
    solve_ms: int,
) -> Allocation:
    placed = {n for spans in draft.spans.values() for n in spans}
    idle = sorted(n for n in draft.planners[0].profiles if n not in placed)
    if idle:
        warnings = (*warnings, f"standing by, no span fits: {', '.join(idle)}")
    unserved = [m for m, spans in draft.spans.items() if not spans]
    if unserved:
        warnings = (*warnings, f"not enough memory left for: {', '.join(unserved)}")
    placements = draft.placements()
    moves = moved(problem, placements)
    return Allocation(
        placements=placements,
        pipelines=tuple(chain.node_ids for chain in draft.chains),
        objective_tokens_per_s=draft.rate,
        bound_tokens_per_s=max(draft.rate, rate_bound(draft.planners)),
        solver=solver,
        status=status,
        solve_ms=solve_ms,
        warnings=warnings,
        moved_nodes=moves.num_nodes,
        moved_bytes=moves.num_bytes,
        fetched_bytes=moves.fetched_bytes,
    )
