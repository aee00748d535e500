"""`plait plan` on a pool of plait's own: one model, or several side by side."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.plan_asked import Asked, demand_of, replicas_of, specs_of
from plait.cli.plan_current import read_current
from plait.cli.plan_moves import Moves, moves_json, show_moves
from plait.cli.plan_output import Shown, counted, write_plan
from plait.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from plait.cli.plan_fields import Table
    from plait.cli.plan_pool import Pool
    from plait.types import ModelSpec
    from scheduler.allocation import Allocation, AllocationProblem
    from scheduler.planning.ground import Wish


def plan_own(table: "Table", file: Path, asked: Asked, wish: "Wish", shown: Shown) -> None:
    """Plan as a network of these nodes would. Raises ConfigError, ModelError, UnavailableError."""
    from rich.console import Console

    from plait.cli.plan_own_again import plan_from
    from plait.cli.plan_pool import pool_of
    from plait.cli.solver import Solver

    described = pool_of(table, file)
    problem = problem_of(described, asked, file, time_limit_s=wish.time_limit_s)
    if wish.stages_max is not None or wish.tpot_s_max is not None:
        asked.only("--max-stages and --slo-tpot-ms are")
        if asked.replicas_min:
            raise ConfigError("--min-replicas goes without --max-stages and --slo-tpot-ms")
        _plan_wished(problem, asked, wish, shown, file)
        return
    moves: Moves | None = None
    if asked.current is None:
        plan = Solver().allocate(problem)
    else:
        plan, problem, moves = plan_from(problem, read_current(asked.current), file)
    content = plan_json(plan, problem)
    write_plan(shown.out, content)
    if shown.as_json:
        print(json.dumps(content | (moves_json(moves) if moves is not None else {}), indent=1))
        return
    console = Console()
    show_plan(console, plan, problem)
    if moves is not None:
        show_moves(console, moves)


def problem_of(
    pool: "Pool", asked: Asked, file: Path, *, time_limit_s: float
) -> "AllocationProblem":
    """The question that a coordinator of this pool would ask. Raises ConfigError, ModelError."""
    from scheduler.allocation import AllocationProblem
    from scheduler.cost import group_refusal

    specs = specs_of(asked, pool.weight_format)
    for node in pool.nodes:
        for spec in specs.values():
            if (reason := group_refusal(node.group, spec)) is not None:
                raise ConfigError(f"{file}: node {node.node_id}: {reason}")
    return AllocationProblem(
        models=tuple(specs.values()),
        nodes=pool.nodes,
        kv_tokens_min=asked.kv_tokens if asked.kv_tokens is not None else pool.kv_tokens,
        wire_dtype=pool.wire_dtype,
        rtt_ms=pool.rtt_ms,
        time_limit_s=time_limit_s,
        mean_session_s=pool.mean_session_s,
        demand=demand_of(asked, specs),
        replicas_min=replicas_of(asked, specs),
    )


def _plan_wished(
    problem: "AllocationProblem", asked: Asked, wish: "Wish", shown: Shown, file: Path
) -> None:
    """What networks plan by themselves knows no wishes: these go to the planner of pools."""
    from plait.cli.plan_ground import plan_ground
    from plait.cli.plan_nominal import NominalPool
    from scheduler.allocation.chain import ChainPlanner
    from scheduler.allocation.planned import ground_of

    spec = problem.models[0]
    ground = ground_of(ChainPlanner(problem, spec), [node.node_id for node in problem.nodes])
    pool = NominalPool(ground, spec.model_id, ())
    plan_ground(pool, wish, shown, file=file, current=asked.current)


def plan_json(plan: "Allocation", problem: "AllocationProblem") -> dict[str, object]:
    """The plan as plain data."""
    from scheduler.allocation.rates import asked_shares, model_rates

    rates, parts = model_rates(problem, plan), asked_shares(problem)
    return {
        "placements": [
            {
                "node": p.node_id,
                "model": p.model_id,
                "start": p.span.start,
                "end": p.span.end,
                "reason": p.reason,
            }
            for p in plan.placements
        ],
        "pipelines": [list(chain) for chain in plan.pipelines],
        "models": [
            {
                "model": spec.model_id,
                "num_layers": spec.num_layers,
                "tokens_per_s": round(rates[spec.model_id], 3),
                "share_asked": round(parts[spec.model_id], 6),
            }
            for spec in problem.models
        ],
        "tokens_per_s": round(plan.objective_tokens_per_s, 3),
        "bound_tokens_per_s": round(plan.bound_tokens_per_s, 3),
        "solver": plan.solver,
        "status": plan.status,
        "solve_ms": plan.solve_ms,
        "warnings": list(plan.warnings),
    }


def show_plan(console: "Console", plan: "Allocation", problem: "AllocationProblem") -> None:
    """Who holds what, what that carries, and what to know."""
    from rich.table import Table
    from rich.text import Text

    from plait.cli.reasons import apart

    profiles = {profile.node_id: profile for profile in problem.nodes}
    specs: dict[str, ModelSpec] = {spec.model_id: spec for spec in problem.models}
    chain_of = {n: i + 1 for i, chain in enumerate(plan.pipelines) for n in chain}
    is_shared = len(specs) > 1
    table = Table("node", *(["model"] if is_shared else []), "chain", "layers", "weights")
    table.add_column("of memory")
    table.add_column("why")
    own, shared = apart([placement.reason for placement in plan.placements])
    for placement, why in zip(plan.placements, own, strict=True):
        profile, spec = profiles[placement.node_id], specs[placement.model_id]
        weights = spec.weight_bytes(placement.span, profile.compute_dtype)
        chain = chain_of.get(placement.node_id)
        table.add_row(
            placement.node_id,
            *([Text(placement.model_id)] if is_shared else []),
            str(chain) if chain is not None else "spare",
            str(placement.span),
            f"{weights / 2**30:.2f} GiB",
            f"{100 * weights / profile.memory_bytes:.0f} %",
            Text(why),
        )
    console.print(table)
    for reason in shared:
        console.print(Text(f"why: {reason}"))
    if is_shared:
        _show_shares(console, plan, problem)
    console.print(
        f"{counted(len(plan.pipelines), 'chain', 'chains')}, {plan.objective_tokens_per_s:.1f} "
        f"tokens/s for all users together; no plan exceeds {plan.bound_tokens_per_s:.1f} "
        f"({plan.solver}, {plan.status}, {plan.solve_ms} ms)"
    )
    for warning in plan.warnings:
        console.print(f"[yellow]note[/]: {warning}")


def _show_shares(console: "Console", plan: "Allocation", problem: "AllocationProblem") -> None:
    """What each model has, against its part of what is asked."""
    from rich.text import Text

    from scheduler.allocation.rates import asked_shares, model_rates

    rates, parts = model_rates(problem, plan), asked_shares(problem)
    total = sum(rates.values())
    placed = {p.node_id: p.model_id for p in plan.placements}
    for model_id, rate in rates.items():
        count = sum(placed[chain[0]] == model_id for chain in plan.pipelines)
        has = 100 * rate / total if total else 0.0
        console.print(
            Text(
                f"{model_id}: {counted(count, 'chain', 'chains')}, {rate:.1f} tokens/s, "
                f"{has:.0f} % of all; {100 * parts[model_id]:.0f} % is asked of it"
            )
        )
