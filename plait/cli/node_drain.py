"""`plait node drain`: take a node out in order, from its own machine or from the operator's."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from plait.cli.durations import milliseconds
from plait.cli.fields import Fields
from plait.cli.node_owner import Home
from plait.cli.status import Admin, connected_admin
from plait.clock import SystemClock
from plait.errors import ConfigError, DeadlineError

HERE: Final = "here"
GRACE_S: Final = 5.0
POLL_S: Final = 0.2


def drain(
    name: Annotated[
        str,
        typer.Argument(
            help="A node's name or id, for the operator; here: the one on this machine."
        ),
    ] = HERE,
    limit_s: Annotated[
        float, typer.Option(min=0.1, help="How long what runs may take, for the operator.")
    ] = 10.0,
    home: Home = None,
) -> None:
    """Take a node out in order: running requests end or move, no client notices, it exits with 0.

    The node on this machine takes as long as its own --drain-s says.
    """
    if name == HERE:
        from node.agent.identity import node_home

        drain_here(home if home is not None else node_home(), wait_s=limit_s)
        return
    milliseconds(limit_s, flag="--limit-s")
    drain_named(name, limit_s=limit_s)


def drain_here(home: Path, *, wait_s: float) -> None:
    """Ask the node that runs from `home` to leave, as SIGTERM does, and wait until it has.

    Raises ConfigError: none runs, or it is another user's. DeadlineError: it is still there.
    """
    from node.agent.local_status import is_running, read_local_status

    local = read_local_status(home, SystemClock())
    if local is None:
        raise ConfigError(
            f"no node runs from {home} on this machine: name the node to drain it from the "
            "operator's machine, or say where it lives with --home",
            reason="node_not_running",
        )
    try:
        os.kill(local.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise ConfigError(
            f"the node (process {local.pid}) belongs to another user: drain it as that user"
        ) from None
    typer.echo("draining: running requests end or move to other nodes")
    deadline_s = time.perf_counter() + wait_s + GRACE_S
    while is_running(local.pid):
        if time.perf_counter() > deadline_s:
            raise DeadlineError(f"process {local.pid} still runs; a second SIGTERM ends it at once")
        time.sleep(POLL_S)
    typer.echo("drained: the node has left")


def drain_named(name: str, *, limit_s: float) -> None:
    """Have the coordinator take the node of this name or id out, and wait until it has left.

    Raises ConfigError: no such node, or several. PlaitError as the coordinator answers.
    """
    asyncio.run(_drain_named(name, limit_s))


async def _drain_named(name: str, limit_s: float) -> None:
    async with connected_admin() as admin:
        node_id = _find(name, await _attached(admin))
        await admin.drain(node_id, limit_ms=round(limit_s * 1_000))
        typer.echo(f"draining {name}: running requests end or move to other nodes")
        deadline_s = time.perf_counter() + limit_s + GRACE_S
        while any(found == node_id for found, _ in await _attached(admin)):
            if time.perf_counter() > deadline_s:
                raise DeadlineError(f"{name} has not left; `plait status` shows what it does")
            await asyncio.sleep(POLL_S)
    typer.echo(f"drained: {name} has left")


async def _attached(admin: Admin) -> list[tuple[str, str]]:
    """(id, display name) of every node."""
    nodes = Fields.parse(await admin.fetch()).many("nodes")
    return [
        (node.text("node_id"), node.text("display_name"))
        for node in nodes
        if node.text("state") != "gone"
    ]


def _find(name: str, nodes: list[tuple[str, str]]) -> str:
    """The id of the node called `name`. Raises ConfigError."""
    found = [node_id for node_id, display_name in nodes if name in (node_id, display_name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{len(found)} nodes are called {name!r}: give an id of {', '.join(found)}"
        )
    called = ", ".join(display_name or node_id for node_id, display_name in nodes)
    raise ConfigError(f"no node {name!r} is attached; attached: {called or 'none'}")
