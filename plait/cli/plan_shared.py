"""`plait plan` for several models on one pool of nominal devices."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.plan_asked import Asked, parts_of
from plait.cli.plan_output import Shown, Watch, counted, write_plan
from plait.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from plait.cli.plan_fields import Table
    from plait.cli.plan_nominal import NominalPool
    from scheduler.planning.ground import Wish
    from scheduler.planning.share import SharedPlan


def plan_shared(table: "Table", file: Path, asked: Asked, wish: "Wish", shown: Shown) -> None:
    """Models side by side. Raises ConfigError, UnavailableError."""
    from rich.console import Console

    from plait.cli.plan_nominal import read_nominal
    from plait.cli.solver import Solver

    if asked.current is not None:
        raise ConfigError("--current in pools of nominal devices is for one --model at a time")
    parts = parts_of(asked)
    pools = [read_nominal(table, str(file), model) for model in asked.models]
    with Watch() as watch:
        plan = Solver().plan_shared([pool.ground for pool in pools], parts, wish)
    write_plan(shown.out, shared_file(pools, plan))
    if shown.as_json:
        print(json.dumps(shared_json(pools, plan, parts, watch.passed_ms), indent=1))
    else:
        _show(Console(), pools, plan, parts, watch.passed_ms, is_explained=shown.is_explained)


def shared_file(pools: "Sequence[NominalPool]", plan: "SharedPlan") -> dict[str, object]:
    """Every chain of every model; stages name their model."""
    from plait.cli.plan_view import chain_stages

    return {
        "pipelines": [
            [{**stage, "model": pool.model} for stage in stages]
            for pool, own in zip(pools, plan.plans, strict=True)
            for stages in chain_stages(pool, own)
        ]
    }


def shared_json(
    pools: "Sequence[NominalPool]", plan: "SharedPlan", parts: "Sequence[float]", solve_ms: int
) -> dict[str, object]:
    """Everything about the plan as plain data."""
    return {
        **shared_file(pools, plan),
        "models": [
            {
                "model": pool.model,
                "tokens_per_s": round(own.rate_per_s, 3),
                "share_asked": round(part, 6),
                "alone_tokens_per_s": round(alone, 3),
                "tpot_ms_single": [round(1e3 * chain.tpot_s, 3) for chain in own.chains],
            }
            for pool, own, part, alone in zip(
                pools, plan.plans, parts, plan.alone_per_s, strict=True
            )
        ],
        "tokens_per_s": round(sum(plan.rates_per_s()), 3),
        "standing_by": _standing_by(pools, plan),
        "solve_ms": solve_ms,
        "warnings": _warnings(pools, plan),
    }


def _show(
    console: "Console",
    pools: "Sequence[NominalPool]",
    plan: "SharedPlan",
    parts: "Sequence[float]",
    solve_ms: int,
    *,
    is_explained: bool,
) -> None:
    from rich.table import Table
    from rich.text import Text

    from plait.cli.plan_view import chain_stages, explain_pool

    table = Table("model", "tokens/s", "ms/token alone", "stages: node, layers")
    for pool, own in zip(pools, plan.plans, strict=True):
        for chain, stages in zip(own.chains, chain_stages(pool, own), strict=True):
            said = ", ".join(f"{s['node']} {s['start']}-{int(str(s['end'])) - 1}" for s in stages)
            row = f"{chain.rate:.1f}", f"{1e3 * chain.tpot_s:.1f}", Text(said)
            table.add_row(Text(pool.model), *row)
    console.print(table)
    total = sum(plan.rates_per_s())
    for pool, own, part, alone in zip(pools, plan.plans, parts, plan.alone_per_s, strict=True):
        console.print(
            Text(
                f"{pool.model}: {counted(len(own.chains), 'chain', 'chains')}, "
                f"{own.rate_per_s:.1f} tokens/s, {100 * own.rate_per_s / total:.0f} % of all; "
                f"{100 * part:.0f} % is asked of it; with the whole pool it would carry {alone:.1f}"
            )
        )
        if is_explained:
            explain_pool(console, pool, own)
    idle = _standing_by(pools, plan)
    by = counted(len(idle), "node stands by", "nodes stand by")
    console.print(f"{total:.1f} tokens/s for all together ({solve_ms} ms); {by}")
    for warning in _warnings(pools, plan):
        console.print(Text(f"note: {warning}", style="yellow"))


def _standing_by(pools: "Sequence[NominalPool]", plan: "SharedPlan") -> list[str]:
    used = {i for own in plan.plans for chain in own.chains for i in chain.members}
    machines = pools[0].ground.machines
    return [machine.node_id for i, machine in enumerate(machines) if i not in used]


def _warnings(pools: "Sequence[NominalPool]", plan: "SharedPlan") -> list[str]:
    found = [note for pool in pools for note in pool.notes]
    found += [warning for own in plan.plans for warning in own.warnings]
    for pool, own, alone in zip(pools, plan.plans, plan.alone_per_s, strict=True):
        if not own.chains:
            why = "beside the others" if alone else "at all"
            found.append(f"{pool.model} does not fit {why}: not enough memory")
    return list(dict.fromkeys(found))
