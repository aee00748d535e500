"""`plait plan`: who would hold which layers, without starting anything."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plait.cli.plan_pool import Pool
    from plait.types import ModelSpec
    from scheduler.allocation import Allocation

app = typer.Typer(
    help="Plan a pool of nodes on paper: who would hold which layers, and how fast it would be.",
    context_settings={"allow_interspersed_args": True},
)


@app.callback(invoke_without_command=True)
def run(
    pool: Annotated[Path, typer.Argument(help="TOML or JSON; fields in docs/scheduling.md.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name, a hub repository, a folder or a file.")
    ],
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV slots on every node. [default: the pool's]")
    ] = None,
    time_limit_s: Annotated[float, typer.Option(min=0.1, help="For the solver.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Plan a pool of nodes on paper: who would hold which layers, and how fast it would be."""
    from plait.cli.plan_pool import read_pool
    from plait.models.naming import resolve
    from plait.models.opening import load_spec
    from scheduler.allocation import AllocationProblem, allocate

    described = read_pool(pool)
    spec = load_spec(resolve(model))
    problem = AllocationProblem(
        models=(spec,),
        nodes=described.nodes,
        kv_tokens_min=kv_tokens if kv_tokens is not None else described.kv_tokens,
        wire_dtype=described.wire_dtype,
        rtt_ms=described.rtt_ms,
        time_limit_s=time_limit_s,
    )
    with _solver_output_to_stderr():
        plan = allocate(problem)
    if as_json:
        print(json.dumps(plan_json(plan), indent=1))
    else:
        _show(plan, spec, described)


def plan_json(plan: "Allocation") -> dict[str, object]:
    """The plan as plain data."""
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
        "tokens_per_s": round(plan.objective_tokens_per_s, 3),
        "bound_tokens_per_s": round(plan.bound_tokens_per_s, 3),
        "solver": plan.solver,
        "status": plan.status,
        "solve_ms": plan.solve_ms,
        "warnings": list(plan.warnings),
    }


def _show(plan: "Allocation", spec: "ModelSpec", pool: "Pool") -> None:
    from rich.console import Console
    from rich.table import Table

    profiles = {profile.node_id: profile for profile in pool.nodes}
    chain_of = {n: i + 1 for i, chain in enumerate(plan.pipelines) for n in chain}
    table = Table("node", "chain", "layers", "weights", "of memory", "why")
    for placement in plan.placements:
        profile = profiles[placement.node_id]
        weights = spec.weight_bytes(placement.span, profile.compute_dtype)
        chain = chain_of.get(placement.node_id)
        table.add_row(
            placement.node_id,
            str(chain) if chain is not None else "spare",
            str(placement.span),
            f"{weights / 2**30:.2f} GiB",
            f"{100 * weights / profile.memory_bytes:.0f} %",
            placement.reason,
        )
    console = Console()
    console.print(table)
    count = len(plan.pipelines)
    console.print(
        f"{count} {'chain' if count == 1 else 'chains'}, {plan.objective_tokens_per_s:.1f} "
        f"tokens/s for all users together; no plan exceeds {plan.bound_tokens_per_s:.1f} "
        f"({plan.solver}, {plan.status}, {plan.solve_ms} ms)"
    )
    for warning in plan.warnings:
        console.print(f"[yellow]note[/]: {warning}")


@contextlib.contextmanager
def _solver_output_to_stderr() -> Iterator[None]:
    """Solvers print from C to descriptor 1, which is for the answer."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
