"""`plait node top`: what this machine gives, live."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plait.cli.node_owner import Home

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from node.agent.figures import NodeFigures
    from node.agent.local_status import LocalStatus

_GIB: Final = 1 << 30


def top(
    home: Home = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
) -> None:
    """Tokens, layers, requests, traffic, watts, degrees of the node here; q or Ctrl-C ends it."""
    from rich.console import Console

    from node.agent.identity import node_home

    folder, console = home if home is not None else node_home(), Console()
    gauge = _Gauge(folder)
    if once:
        console.print(gauge.look(0.0))
        return
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_live(gauge, console))


async def _live(gauge: "_Gauge", console: "Console") -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from plait.cli.watching import HINT, until_key

    def look() -> Group:
        return Group(gauge.look(time.perf_counter()), Text(HINT, style="dim"))

    with until_key("q") as pause, Live(look(), console=console, auto_refresh=False) as live:
        live.refresh()
        while await pause():
            live.update(look(), refresh=True)


class _Gauge:
    """Figures, and what they came to since the last look."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._last: tuple[float, NodeFigures] | None = None

    def look(self, now_s: float) -> "Table":
        """One look; `now_s` for rates."""
        from node.agent.figures import read_figures
        from node.agent.local_status import read_local_status
        from plait.clock import SystemClock

        clock = SystemClock()
        figures = read_figures(self._home, clock)
        rates = self._rates(now_s, figures)
        if figures is not None:
            self._last = (now_s, figures)
        return top_table(read_local_status(self._home, clock), figures, rates)

    def _rates(self, now_s: float, figures: "NodeFigures | None") -> tuple[float, float, float]:
        """(tokens/s, bytes/s sent, bytes/s received) since the last look."""
        if self._last is None or figures is None or figures.serving is None:
            return (0.0, 0.0, 0.0)
        then_s, then = self._last
        if then.serving is None or now_s <= then_s or figures.uptime_s < then.uptime_s:
            return (0.0, 0.0, 0.0)
        new, old, length_s = figures.serving, then.serving, now_s - then_s
        return (
            (new.tokens_total - old.tokens_total) / length_s,
            (new.sent_bytes - old.sent_bytes) / length_s,
            (new.received_bytes - old.received_bytes) / length_s,
        )


def top_table(
    local: "LocalStatus | None", figures: "NodeFigures | None", rates: tuple[float, float, float]
) -> "Table":
    """What is shown of a node."""
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    does = f"{local.phase}: {local.detail}" if local is not None else "no node runs here"
    table.add_row("does", escape(does))
    if figures is None:
        return table
    table.add_row("up for", _span(figures.uptime_s))
    serving = figures.serving
    if serving is not None:
        layers = f"{serving.layers} of {serving.model_id}" if serving.model_id else "none"
        used = 100 * serving.kv_tokens_reserved // max(1, serving.kv_tokens_max)
        table.add_row("layers", escape(layers))
        table.add_row("weights", f"{serving.weight_bytes / _GIB:.2f} GiB")
        table.add_row("requests now", f"{serving.num_requests}, KV {used} % in use")
        table.add_row("tokens", f"{serving.tokens_total:,} served, {rates[0]:.1f}/s now")
        table.add_row("step", f"{serving.stage_ms:.1f} ms")
        if serving.draft:
            table.add_row("draft model", escape(serving.draft))
        up, down = (rate * 8 / 1e6 for rate in rates[1:])
        if serving.weights:
            table.add_row("came and went", escape(serving.weights))
        table.add_row("traffic now", f"{up:.2f} Mbit/s up, {down:.2f} Mbit/s down")
    table.add_row("this month", f"{figures.month_bytes / 1e9:.2f} GB")
    if figures.temp_c is not None:
        table.add_row("GPU", f"{figures.temp_c:.0f} °C, {figures.power_w or 0:.0f} W")
    if figures.limits:
        table.add_row("limits", escape("\n".join(figures.limits)))
    for note in figures.notes:
        table.add_row("mind", escape(note))
    return table


def _span(seconds: float) -> str:
    minutes = int(seconds) // 60
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"
