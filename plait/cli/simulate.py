"""`plait simulate`: what a pool would serve, in virtual time."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plait.cli.extras import needs

if TYPE_CHECKING:
    from scheduler.simulation.pool import Pool
    from scheduler.simulation.pool_planner import PlanPool
    from scheduler.simulation.report import Report
    from scheduler.simulation.strategy import Strategy
    from scheduler.simulation.trace import Arrival

REQUESTS_MAX: Final = 1_000_000
app = typer.Typer(
    help="Simulate a pool under load: what it would serve, and how long people would wait.",
    context_settings={"allow_interspersed_args": True},
)


class StrategyName(StrEnum):
    """Who decides."""

    PLAIT = "plait"
    ROUND_ROBIN = "round-robin"


class ArrivalsName(StrEnum):
    """How requests come."""

    BURSTY = "bursty"
    POISSON = "poisson"


@app.callback(invoke_without_command=True)
def run(
    file: Annotated[Path, typer.Argument(help="A pool, TOML or JSON; see docs/planning.md.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A name, a hub repository, a folder or a file; or one of FILE's."
        ),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.001, max=10_000, help="Requests a second.")] = 1.0,
    minutes: Annotated[float, typer.Option(min=0.01, max=1_440, help="Of requests.")] = 5.0,
    churn: Annotated[
        float, typer.Option(min=0.0, max=60.0, help="Share of nodes that leave in an hour.")
    ] = 0.0,
    arrivals: Annotated[ArrivalsName, typer.Option(help="How requests come.")] = (
        ArrivalsName.BURSTY
    ),
    strategy: Annotated[
        StrategyName, typer.Option(help="plait, or fixed greedy pipelines taken in turns.")
    ] = StrategyName.PLAIT,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 0,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of a step at most.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Simulate a pool under load: what it would serve, and how long people would wait."""
    needs("coordinator")
    from plait.cli.solver import Solver
    from plait.cli.solver_output import solver_output_to_stderr
    from scheduler.simulation.churn import draw_churn
    from scheduler.simulation.engine import Engine
    from scheduler.simulation.report import summarise

    pool = read_simulated_pool(file, model)
    duration_s = 60.0 * minutes
    trace = draw_trace(rate, minutes, arrivals, seed)
    changes = draw_churn(
        num_nodes=len(pool.ground.machines),
        leaves_per_hour=churn,
        duration_s=duration_s,
        seed=seed,
    )
    decides = make_strategy(strategy, pool, plan=Solver().plan_pool)
    engine = Engine(pool, trace, decides, churn=changes, chunk_tokens=chunk_tokens)
    with solver_output_to_stderr(), _bar(duration_s, is_shown=not as_json) as watch:
        outcomes = engine.run(watch)
        if not any(node.span is not None for node in engine.nodes) and not changes:
            refuse_pool(pool)
    report = summarise(outcomes, duration_s=duration_s)
    if as_json:
        print(json.dumps({"strategy": strategy.value, **_finite(asdict(report))}, indent=1))
    else:
        _show(report, strategy.value, sum(change.is_leave for change in changes))


def draw_trace(
    rate: float, minutes: float, arrivals: ArrivalsName, seed: int
) -> "tuple[Arrival, ...]":
    """The requests. Raises ConfigError where there is none, or more than anybody waits for."""
    from plait.errors import ConfigError
    from scheduler.simulation.trace import Arrivals, conversation

    expected = 60.0 * minutes * rate
    if expected > REQUESTS_MAX:
        raise ConfigError(
            f"{rate:g} requests a second for {minutes:g} minutes are {expected:,.0f}; "
            f"{REQUESTS_MAX:,} at most are simulated: take fewer --minutes"
        )
    trace = conversation(
        rate_per_s=rate, duration_s=60.0 * minutes, arrivals=Arrivals(arrivals.value), seed=seed
    )
    if not trace:
        raise ConfigError(
            f"no request comes: {rate:g} a second for {minutes:g} minutes are {expected:.2g} on "
            "average; take more --minutes or a higher --rate"
        )
    return trace


def read_simulated_pool(file: Path, model: str | None) -> "Pool":
    """A pool of nominal figures, or one of plait's own. Raises ConfigError, PlaitError."""
    from plait.cli.plan_fields import read_table
    from plait.cli.plan_nominal import is_nominal, read_nominal
    from plait.cli.plan_pool import pool_of
    from plait.errors import ConfigError
    from plait.models.naming import resolve
    from plait.models.opening import load_spec
    from scheduler.cost import Links
    from scheduler.simulation.pool import measured_pool, nominal_pool

    table = read_table(file)
    if is_nominal(table):
        return nominal_pool(read_nominal(table, str(file), model).ground)
    described = pool_of(table, file)
    if model is None:
        raise ConfigError("which model? give --model NAME")
    spec = replace(load_spec(resolve(model)), weight_format=described.weight_format)
    links = Links(described.nodes, described.rtt_ms)
    hop_bytes = described.wire_dtype.row_bytes(spec.hidden_size)
    return measured_pool(described.nodes, spec, links, hop_bytes=hop_bytes)


def refuse_pool(pool: "Pool") -> None:
    """Nobody was given layers: say why. Raises UnavailableError."""
    from plait.errors import UnavailableError
    from scheduler.planning.ground import Wish
    from scheduler.planning.pool import plan_pool

    plan_pool(pool.ground, Wish())
    raise UnavailableError(
        "this strategy finds no chain of these machines, though the planner does: try "
        "`--strategy plait`"
    )


@contextmanager
def _bar(duration_s: float, *, is_shown: bool) -> Iterator[Callable[[float], None]]:
    """How far a simulation is, on a terminal; yields what to call with its clock."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=not (is_shown and console.is_terminal)
    ) as bars:
        task = bars.add_task("planning", total=duration_s)

        def watch(now_s: float) -> None:
            text = f"simulating, {now_s / 60:.1f} of {duration_s / 60:g} min"
            bars.update(task, completed=now_s, description=text)

        yield watch


def make_strategy(
    name: StrategyName, pool: "Pool", *, plan: "PlanPool | None" = None
) -> "Strategy":
    """Who decides, ready to start. `plan` makes the plans in place of this very process."""
    from functools import partial

    from scheduler.simulation.plait import Plait
    from scheduler.simulation.pool_planner import pool_planner
    from scheduler.simulation.pool_repair import PoolRepair
    from scheduler.simulation.round_robin import RoundRobin

    if name is StrategyName.PLAIT:
        planner = pool_planner if plan is None else partial(pool_planner, plan=plan)
        return Plait(pool, planner, PoolRepair(pool))
    return RoundRobin()


def _finite(figures: dict[str, object]) -> dict[str, object]:
    """NaN, where nothing was served, is no JSON."""
    return {
        name: [None if v != v else v for v in value] if isinstance(value, tuple) else value
        for name, value in figures.items()
    }


def _show(report: "Report", strategy: str, num_leaves: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("seconds", "p50", "p95", "p99")
    for name, figures in (("first token", report.ttft_s), ("per token", report.tpot_s)):
        table.add_row(name, *("-" if figure != figure else f"{figure:.3f}" for figure in figures))
    console.print(table)
    console.print(
        f"{strategy}: {report.num_requests} requests, {report.num_finished} finished, "
        f"{report.num_failed} failed, {report.num_rerouted} rerouted; {num_leaves} nodes left"
    )
    share = report.num_good / report.num_requests if report.num_requests else 0.0
    console.print(
        f"{report.tokens_per_s:.1f} tokens/s, {report.requests_per_s:.2f} requests/s; goodput "
        f"{report.goodput_per_s:.2f} requests/s ({100 * share:.0f} % within 5 s to the first token "
        f"and 300 ms for each after it); digest {report.digest}"
    )
