"""`plait top`: the network's nodes and requests of now, live, for its operator."""

import asyncio
import contextlib
from typing import Annotated

import typer

app = typer.Typer(help="Watch nodes and requests live.")


@app.callback(invoke_without_command=True)
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, a second apart, show it and end.")
    ] = False,
) -> None:
    """Nodes with what they do now, requests that run, totals; q or Ctrl-C ends it."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_once() if once else _live())


async def _once() -> None:
    from rich.console import Console

    from plait.cli.fields import Fields
    from plait.cli.status import connected
    from plait.cli.top_view import Rates, frame
    from plait.cli.watching import EVERY_S

    rates, console = Rates(), Console()
    async with connected() as fetch:
        rates.look(Fields.parse(await fetch()))
        await asyncio.sleep(EVERY_S)
        view = Fields.parse(await fetch())
    rates.look(view)
    console.print(frame(view, rates, height=console.height))


async def _live() -> None:
    from rich.console import Console, RenderableType

    from plait.cli.fields import Fields
    from plait.cli.status import connected
    from plait.cli.top_view import Rates, frame
    from plait.cli.watching import HINT, until_key, watch

    rates, console = Rates(), Console()

    def draw(view: Fields) -> RenderableType:
        rates.look(view)
        return frame(view, rates, height=console.height, hint=HINT)

    async with connected() as fetch:
        with until_key("q") as pause:
            await watch(fetch, draw, pause, console=console, screen=console.is_terminal)
