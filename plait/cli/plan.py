"""`plait plan`: who would hold which layers, without starting anything."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.extras import needs
from plait.cli.plan_output import Shown, Watch, write_plan
from plait.errors import ConfigError

if TYPE_CHECKING:
    from plait.cli.plan_asked import Asked
    from plait.cli.plan_fields import Table
    from scheduler.planning.ground import Wish

app = typer.Typer(
    help="Plan a pool of nodes on paper: who would hold which layers, and how fast it would be.",
    context_settings={"allow_interspersed_args": True},
)


@app.callback(invoke_without_command=True)
def run(
    file: Annotated[
        Path,
        typer.Argument(help="A pool or a cluster, TOML or JSON; fields in docs/planning.md."),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A name, a hub repository, a folder or a file; or one of FILE's. "
            "Again for models side by side.",
        ),
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(
            help="MODEL=WEIGHT: how models share the pool, once each.", show_default="equally"
        ),
    ] = None,
    min_replicas: Annotated[
        list[str] | None,
        typer.Option(
            help="MODEL=N: chains that a model has before any has more, once each; for pools of "
            "measured nodes."
        ),
    ] = None,
    current: Annotated[
        Path | None,
        typer.Option(
            help="A plan that was made before (--out): FILE is the pool as it is now, and few "
            "nodes move."
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
        int | None, typer.Option(min=1, help="KV slots on every node.", show_default="the pool's")
    ] = None,
    time_limit_s: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds that the solver may compute, then the greedy plan."),
    ] = 10.0,
    is_explained: Annotated[
        bool, typer.Option("--explain", help="Say why each node got its layers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Plan a pool of nodes on paper: who would hold which layers, and how fast it would be."""
    needs("coordinator")
    from plait.cli.plan_asked import asked_of
    from plait.cli.plan_cluster import is_cluster
    from plait.cli.plan_fields import read_table
    from plait.cli.plan_nominal import is_nominal
    from plait.cli.plan_own import plan_own
    from scheduler.planning.ground import Wish

    asked = asked_of(
        model or (),
        demand or (),
        replicas_min=min_replicas or (),
        kv_tokens=kv_tokens,
        current=current,
    )
    table = read_table(file)
    if asked.replicas_min and (is_cluster(table) or is_nominal(table)):
        raise ConfigError("--min-replicas is for pools of measured nodes, see docs/planning.md")
    wish = Wish(
        stages_max=stages_max,
        tpot_s_max=None if slo_tpot_ms is None else slo_tpot_ms / 1e3,
        time_limit_s=time_limit_s,
    )
    shown = Shown(as_json=as_json, is_explained=is_explained, out=out)
    if is_cluster(table):
        _plan_cluster(table, file, asked, wish, shown)
    elif is_nominal(table):
        _plan_nominal(table, file, asked, wish, shown)
    else:
        plan_own(table, file, asked, wish, shown)


def _plan_cluster(table: "Table", file: Path, asked: "Asked", wish: "Wish", shown: Shown) -> None:
    from rich.console import Console

    from plait.cli.plan_cluster import read_cluster
    from plait.cli.plan_view import cluster_file, cluster_json, show_cluster
    from plait.cli.solver import Solver

    if wish.tpot_s_max is not None:
        raise ConfigError("a cluster's file has no token times: --slo-tpot-ms is for pools")
    if asked.current is not None:
        raise ConfigError("a cluster is planned anew: --current is for pools")
    if asked.models:
        raise ConfigError("a cluster's file is of one model already: --model is for pools")
    cluster = read_cluster(table, str(file))
    with Watch() as watch:
        plan = Solver().plan_cluster(cluster, wish)
    write_plan(shown.out, cluster_file(cluster, plan))
    if shown.as_json:
        print(json.dumps(cluster_json(cluster, plan, watch.passed_ms), indent=1))
    else:
        show_cluster(Console(), cluster, plan, watch.passed_ms, is_explained=shown.is_explained)


def _plan_nominal(table: "Table", file: Path, asked: "Asked", wish: "Wish", shown: Shown) -> None:
    from plait.cli.plan_ground import plan_ground
    from plait.cli.plan_nominal import read_nominal
    from plait.cli.plan_shared import plan_shared

    if len(asked.models) > 1:
        plan_shared(table, file, asked, wish, shown)
        return
    model = asked.only("a plan is")
    pool = read_nominal(table, str(file), model)
    plan_ground(pool, wish, shown, file=file, current=asked.current)
