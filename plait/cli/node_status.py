"""`plait node status`: what the node on this machine does, within which limits, and its papers."""

import asyncio
import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plait.cli.node_owner import Home, Limits, Sets, owner_settings

if TYPE_CHECKING:
    from node.agent.figures import NodeFigures
    from node.agent.identity import NodeCredentials

_GIB: Final = 1 << 30


def status(
    home: Home = None,
    limits: Limits = None,
    sets: Sets = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Only whether it serves or stands by: exit code 0."),
    ] = False,
) -> None:
    """What the node on this machine does, its limits, and whether it reaches the coordinator."""
    from node.agent.identity import load_credentials, node_home
    from node.agent.local_status import read_local_status
    from plait.clock import SystemClock

    clock = SystemClock()
    folder = home if home is not None else node_home()
    local = read_local_status(folder, clock)
    does = f"{local.phase}: {local.detail}" if local is not None else "not running"
    if quiet:
        if local is None or not local.is_healthy:
            typer.echo(does, err=True)
            raise typer.Exit(1)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from node.agent.figures import limit_lines, read_figures
    from node.owner.pause import PauseFile

    credentials = load_credentials(folder)
    problem = _problem(credentials)
    figures = read_figures(folder, clock)
    pause = PauseFile(folder).read(clock.unix_ms())
    if local is None and pause is not None:
        does = "not running, and paused: `plait node resume` lifts that"
    lines = figures.limits if figures is not None else ()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("node", credentials.node_id)
    table.add_row("name", credentials.display_name or "-")
    table.add_row("does", escape(does))
    for name, value in _counted(figures):
        table.add_row(name, escape(value))
    lines = lines or limit_lines(owner_settings(folder, limits, sets))
    table.add_row("limits", escape("\n".join(lines)) or "none: see node.toml in the docs")
    table.add_row("network", credentials.network_id)
    table.add_row("coordinator", credentials.coordinator_address)
    table.add_row("reachable", f"no: {problem}" if problem else "yes")
    table.add_row("certificate until", _date(credentials.expires_unix_ms))
    table.add_row("papers", str(credentials.home))
    Console().print(table)
    if problem:
        raise typer.Exit(1)


def _problem(credentials: "NodeCredentials") -> str:
    """Why the coordinator cannot be reached; "" where it can."""
    from plait.crypto.certificates import COORDINATOR_NAME
    from plait.errors import PlaitError
    from plait.wire.reach import Address, check_reachable

    try:
        asyncio.run(
            check_reachable(
                Address.parse(credentials.coordinator_address),
                ca_pem=credentials.ca_pem,
                target_name=COORDINATOR_NAME,
            )
        )
    except PlaitError as error:
        return error.message
    return ""


def _counted(figures: "NodeFigures | None") -> Iterator[tuple[str, str]]:
    if figures is None:
        return
    if figures.paused:
        yield "paused", figures.paused
    serving = figures.serving
    if serving is not None and serving.weight_bytes:
        yield "memory", f"{serving.weight_bytes / _GIB:.2f} GiB of weights"
        yield "requests", str(serving.num_requests)
        yield "tokens", f"{serving.tokens_total:,}"
    if serving is not None and serving.weights:
        yield "weights", serving.weights
    if serving is not None and serving.draft:
        yield "draft model", serving.draft
    yield "traffic", f"{figures.month_bytes / 1e9:.2f} GB this month"
    if figures.temp_c is not None:
        yield "GPU", f"{figures.temp_c:.0f} °C, {figures.power_w or 0:.0f} W"
    for note in figures.notes:
        yield "mind", note


def _date(unix_ms: int) -> str:
    return dt.datetime.fromtimestamp(unix_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
