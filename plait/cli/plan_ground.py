"""`plait plan` on a pool of machines as the planner of whole pools sees them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.plan_current import Current, match_models, match_pool, read_current
from plait.cli.plan_moves import Held, Moves, moves_json, shifts_of, show_moves
from plait.cli.plan_output import Shown, Watch, write_plan
from plait.errors import UnavailableError

if TYPE_CHECKING:
    from plait.cli.plan_nominal import NominalPool
    from scheduler.planning.again import PlannedAgain
    from scheduler.planning.ground import Wish
    from scheduler.planning.pool import PoolPlan
    from scheduler.planning.repair import Standing


def plan_ground(
    pool: "NominalPool", wish: "Wish", shown: Shown, *, file: Path, current: Path | None
) -> None:
    """Plan one model, from nothing or from where `current` left off. Raises UnavailableError,
    ConfigError."""
    from rich.console import Console

    from plait.cli.plan_view import pool_file, pool_json, show_pool

    moves: Moves | None = None
    with Watch() as watch:
        if current is None:
            plan = _anew(pool, wish)
        else:
            plan, moves = _again(pool, read_current(current), wish, str(file))
    write_plan(shown.out, pool_file(pool, plan))
    if shown.as_json:
        content = pool_json(pool, plan, watch.passed_ms)
        print(json.dumps(content | (moves_json(moves) if moves is not None else {}), indent=1))
        return
    console = Console()
    show_pool(console, pool, plan, watch.passed_ms, is_explained=shown.is_explained)
    if moves is not None:
        show_moves(console, moves)


def _anew(pool: "NominalPool", wish: "Wish") -> "PoolPlan":
    from plait.cli.solver import Solver

    return Solver().plan_pool(pool.ground, wish)


def _again(
    pool: "NominalPool", current: Current, wish: "Wish", file: str
) -> "tuple[PoolPlan, Moves]":
    """The fewest moves from what is held; where nothing of it can go on, a plan from nothing."""
    from plait.cli.solver import Solver
    from scheduler.planning.again import plan_again

    names = [machine.node_id for machine in pool.ground.machines]
    match_models(current, {pool.model: pool.ground.num_layers})
    gone, joined = match_pool(current, names, file)
    try:
        anew = _anew(pool, wish)
    except UnavailableError:
        # A wish that nothing meets, or too little memory: what stands may be all there is.
        anew = None
    average = None if anew is None else anew.rate_per_s / len(anew.chains)
    again = plan_again(pool.ground, _standing(current, average), wish, Solver().plan_pool)
    if not again.plan.chains:
        _anew(pool, wish)  # raises, with what is missing
    moves = _moves(pool, current, again, gone, joined)
    if anew is None:
        return again.plan, moves
    return _bounded(again, anew), _with_anew(moves, anew.rate_per_s)


def _standing(current: Current, average_per_s: float | None) -> "Standing":
    """What the file says of chains; those of which it says no rate carry what one does on average,
    for the price of moves is reckoned from that."""
    from scheduler.planning.repair import Standing

    known = [rate for rate in current.rates if rate is not None]
    usual = sum(known) / len(known) if known else average_per_s or 1.0
    return Standing(
        chains=tuple(
            tuple((stage.node, stage.end - stage.start) for stage in chain)
            for chain in current.chains
        ),
        rates=tuple(usual if rate is None else rate for rate in current.rates),
    )


def _moves(
    pool: "NominalPool",
    current: Current,
    again: "PlannedAgain",
    gone: list[str],
    joined: list[str],
) -> Moves:
    names = [machine.node_id for machine in pool.ground.machines]
    before = {s.node: Held(pool.model, s.start, s.end) for s in current.held}
    after: dict[str, Held] = {}
    for chain in again.plan.chains:
        at = 0
        for index, count in zip(chain.members, chain.counts, strict=True):
            after[names[index]] = Held(pool.model, at, at + count)
            at += count
    pairs = zip(again.moves, again.read_bytes, strict=True)
    reads = {move.node_id: round(size) for move, size in pairs}
    shifts = shifts_of(names, before, after, reads)
    kept = sum(
        before.get(name) is not None and before.get(name) == after.get(name) for name in names
    )
    return Moves(shifts=shifts, gone=tuple(gone), joined=tuple(joined), num_kept=kept)


def _with_anew(moves: Moves, rate_per_s: float) -> Moves:
    return replace(moves, anew_tokens_per_s=rate_per_s)


def _bounded(again: "PlannedAgain", anew: "PoolPlan") -> "PoolPlan":
    """What no plan of these machines exceeds holds for this one too, and so does what would
    help."""
    plan = again.plan
    return replace(
        plan,
        bound_per_s=max(plan.rate_per_s, anew.bound_per_s),
        worth=anew.worth,
        front=anew.front,
        warnings=(*plan.warnings, *anew.warnings),
    )
