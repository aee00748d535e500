"""`plait plan`: who would hold which layers, without starting anything."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.extras import needs
from plait.clock import SystemClock
from plait.errors import ConfigError, plain_cause

if TYPE_CHECKING:
    from plait.cli.plan_fields import Table
    from plait.cli.plan_nominal import NominalPool
    from plait.cli.plan_pool import Pool
    from plait.types import ModelSpec
    from scheduler.allocation import Allocation, AllocationProblem
    from scheduler.planning.ground import Wish

app = typer.Typer(
    help="Plan a pool of nodes on paper: who would hold which layers, and how fast it would be.",
    context_settings={"allow_interspersed_args": True},
)


@app.callback(invoke_without_command=True)
def run(
    file: Annotated[
        Path,
        typer.Argument(help="A pool or a cluster, TOML or JSON; fields in docs/scheduling.md."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A name, a hub repository, a folder or a file; or one of FILE's."
        ),
    ] = None,
    stages_max: Annotated[
        int | None, typer.Option("--max-stages", min=1, help="Stages of a chain at most.")
    ] = None,
    slo_tpot_ms: Annotated[
        float | None, typer.Option(min=0.001, help="Milliseconds per token at most.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the placements there, as JSON.")] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV slots on every node. [default: the pool's]")
    ] = None,
    time_limit_s: Annotated[float, typer.Option(min=0.1, help="For the solver.")] = 10.0,
    is_explained: Annotated[
        bool, typer.Option("--explain", help="Say why each node got its layers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Plan a pool of nodes on paper: who would hold which layers, and how fast it would be."""
    needs("coordinator")
    from plait.cli.plan_cluster import is_cluster
    from plait.cli.plan_fields import read_table
    from plait.cli.plan_nominal import is_nominal
    from scheduler.planning.ground import Wish

    table = read_table(file)
    wish = Wish(
        stages_max=stages_max,
        tpot_s_max=None if slo_tpot_ms is None else slo_tpot_ms / 1e3,
        time_limit_s=time_limit_s,
    )
    shown = Shown(as_json=as_json, is_explained=is_explained, out=out)
    if is_cluster(table):
        _plan_cluster(table, file, wish, shown)
    elif is_nominal(table):
        _plan_nominal(table, file, model, wish, shown)
    else:
        _plan_own(table, file, model, kv_tokens, wish, shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a plan is shown."""

    as_json: bool
    is_explained: bool
    out: Path | None


def _plan_cluster(table: "Table", file: Path, wish: "Wish", shown: Shown) -> None:
    from rich.console import Console

    from plait.cli.plan_cluster import read_cluster
    from plait.cli.plan_view import cluster_file, cluster_json, show_cluster
    from plait.cli.solver import Solver

    if wish.tpot_s_max is not None:
        raise ConfigError("a cluster's file has no token times: --slo-tpot-ms is for pools")
    cluster = read_cluster(table, str(file))
    with _Watch() as watch:
        plan = Solver().plan_cluster(cluster, wish)
    _write(shown.out, cluster_file(cluster, plan))
    if shown.as_json:
        print(json.dumps(cluster_json(cluster, plan, watch.passed_ms), indent=1))
    else:
        show_cluster(Console(), cluster, plan, watch.passed_ms, is_explained=shown.is_explained)


def _plan_nominal(
    table: "Table", file: Path, model: str | None, wish: "Wish", shown: Shown
) -> None:
    from plait.cli.plan_nominal import read_nominal

    _plan_ground(read_nominal(table, str(file), model), wish, shown)


def _plan_ground(pool: "NominalPool", wish: "Wish", shown: Shown) -> None:
    from rich.console import Console

    from plait.cli.plan_view import pool_file, pool_json, show_pool
    from plait.cli.solver import Solver

    with _Watch() as watch:
        plan = Solver().plan_pool(pool.ground, wish)
    _write(shown.out, pool_file(pool, plan))
    if shown.as_json:
        print(json.dumps(pool_json(pool, plan, watch.passed_ms), indent=1))
    else:
        show_pool(Console(), pool, plan, watch.passed_ms, is_explained=shown.is_explained)


def _plan_own(
    table: "Table",
    file: Path,
    model: str | None,
    kv_tokens: int | None,
    wish: "Wish",
    shown: Shown,
) -> None:
    from plait.cli.plan_pool import pool_of
    from plait.cli.solver import Solver
    from plait.models.naming import resolve
    from plait.models.opening import load_spec
    from scheduler.allocation import AllocationProblem
    from scheduler.cost import group_refusal

    described = pool_of(table, file)
    if model is None:
        raise ConfigError("which model? Name one with --model")
    spec = replace(load_spec(resolve(model)), weight_format=described.weight_format)
    for node in described.nodes:
        if (reason := group_refusal(node.group, spec)) is not None:
            raise ConfigError(f"{file}: node {node.node_id}: {reason}")
    problem = AllocationProblem(
        models=(spec,),
        nodes=described.nodes,
        kv_tokens_min=kv_tokens if kv_tokens is not None else described.kv_tokens,
        wire_dtype=described.wire_dtype,
        rtt_ms=described.rtt_ms,
        time_limit_s=wish.time_limit_s,
        mean_session_s=described.mean_session_s,
    )
    if wish.stages_max is not None or wish.tpot_s_max is not None:
        _plan_wished(problem, wish, shown)
        return
    plan = Solver().allocate(problem)
    _write(shown.out, plan_json(plan))
    if shown.as_json:
        print(json.dumps(plan_json(plan), indent=1))
    else:
        _show(plan, spec, described)


def _plan_wished(problem: "AllocationProblem", wish: "Wish", shown: Shown) -> None:
    """What networks plan by themselves knows no wishes: these go to the planner of pools."""
    from plait.cli.plan_nominal import NominalPool
    from scheduler.allocation.chain import ChainPlanner
    from scheduler.allocation.planned import ground_of

    spec = problem.models[0]
    ground = ground_of(ChainPlanner(problem, spec), [node.node_id for node in problem.nodes])
    _plan_ground(NominalPool(ground, spec.model_id, ()), wish, shown)


class _Watch:
    """Measures a block."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.passed_ms = 0

    def __enter__(self) -> "_Watch":
        self._started_ms = self._clock.monotonic_ms()
        return self

    def __exit__(self, *_: object) -> None:
        self.passed_ms = self._clock.monotonic_ms() - self._started_ms


def _write(path: Path | None, content: dict[str, object]) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {plain_cause(error)}") from error


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
    from rich.text import Text

    from plait.cli.reasons import apart

    profiles = {profile.node_id: profile for profile in pool.nodes}
    chain_of = {n: i + 1 for i, chain in enumerate(plan.pipelines) for n in chain}
    table = Table("node", "chain", "layers", "weights", "of memory", "why")
    own, shared = apart([placement.reason for placement in plan.placements])
    for placement, why in zip(plan.placements, own, strict=True):
        profile = profiles[placement.node_id]
        weights = spec.weight_bytes(placement.span, profile.compute_dtype)
        chain = chain_of.get(placement.node_id)
        table.add_row(
            placement.node_id,
            str(chain) if chain is not None else "spare",
            str(placement.span),
            f"{weights / 2**30:.2f} GiB",
            f"{100 * weights / profile.memory_bytes:.0f} %",
            Text(why),
        )
    console = Console()
    console.print(table)
    for reason in shared:
        console.print(Text(f"why: {reason}"))
    count = len(plan.pipelines)
    console.print(
        f"{count} {'chain' if count == 1 else 'chains'}, {plan.objective_tokens_per_s:.1f} "
        f"tokens/s for all users together; no plan exceeds {plan.bound_tokens_per_s:.1f} "
        f"({plan.solver}, {plan.status}, {plan.solve_ms} ms)"
    )
    for warning in plan.warnings:
        console.print(f"[yellow]note[/]: {warning}")
