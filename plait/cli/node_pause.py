"""`plait node pause` and `resume`: the owner's own word, which lasts over restarts."""

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from plait.cli.node_owner import Home

WAIT_S: Final = 6.0
POLL_S: Final = 0.1


def pause(
    length: Annotated[
        str, typer.Argument(help="How long, e.g. 2h, 45m, 1d; without it, until it is lifted.")
    ] = "",
    home: Home = None,
) -> None:
    """Give the machine back: requests move away, memory is freed, and it stays so over restarts."""
    from node.agent.identity import node_home
    from node.owner.pause import Pause, PauseFile, parse_duration_s
    from plait.clock import SystemClock

    folder = home if home is not None else node_home()
    now_ms = SystemClock().unix_ms()
    until_ms = now_ms + 1_000 * parse_duration_s(length) if length else None
    PauseFile(folder).write(Pause(now_ms, until_ms))
    _wait(folder, is_paused=True)


def resume(home: Home = None) -> None:
    """Lift the pause; says what else keeps the node from serving."""
    from node.agent.identity import node_home
    from node.owner.pause import PauseFile

    folder = home if home is not None else node_home()
    if not PauseFile(folder).lift():
        typer.echo("it was not paused by its owner")
    _wait(folder, is_paused=False)


def _wait(home: Path, *, is_paused: bool) -> None:
    """Until the node has heard of it, and what it says then."""
    from node.agent.local_status import read_local_status
    from node.ports import NodePhase
    from plait.clock import SystemClock

    clock = SystemClock()
    deadline_s = time.perf_counter() + WAIT_S
    local = read_local_status(home, clock)
    if local is None:
        typer.echo("no node runs here; the next one starts " + ("paused" if is_paused else "lent"))
        return
    while time.perf_counter() < deadline_s:
        local = read_local_status(home, clock)
        if local is not None and (local.phase is NodePhase.PAUSED) is is_paused:
            break
        time.sleep(POLL_S)
    typer.echo(f"{local.phase}: {local.detail}" if local is not None else "the node has ended")
