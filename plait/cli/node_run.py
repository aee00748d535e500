"""Runs a node in this process: paused or serving, as its owner's rules say."""

import asyncio
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from plait.cli import loops
from plait.errors import ConfigError

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.core.effects import Exit
    from plait.cli.node_view import NodeScreen


def end_process(code: int) -> NoReturn:
    """Out at once: everything is closed, and unloading the engine's libraries takes a second of
    processor time, many seconds on a machine whose owner wants it back."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_node(config: "NodeConfig") -> int:
    """Join, and serve or stay paused, until the node ends; returns the exit status.

    Raises PlaitError.
    """
    from rich.console import Console

    from plait.cli.node_view import NodeScreen

    console = Console(stderr=True, highlight=False)
    # The first line before the engine's libraries, which take seconds.
    console.print("[dim]plait node: starting; loading the engine takes a few seconds[/]")
    with NodeScreen(console) as screen:
        leaving = loops.run(_join_and_serve(config, screen))
    if leaving.code != 0:
        raise ConfigError(leaving.reason.message or leaving.reason.code, reason=leaving.reason.code)
    return leaving.code


async def _join_and_serve(config: "NodeConfig", screen: "NodeScreen") -> "Exit":
    """Papers first: what is wrong with them shows before the engine's libraries are loaded."""
    from node.agent.joining import check_config, join
    from node.owner.machine import open_hardware
    from node.owner.watch import OwnerWatch
    from plait.cli.lifeline import start_anew
    from plait.cli.node_owner import gpu_index
    from plait.clock import SystemClock
    from plait.crypto.ownership import sole_owner

    await asyncio.to_thread(check_config, config)
    clock = SystemClock()
    gpu, rules = gpu_index(config.device, config.owner), config.owner.limits.pause_when
    hardware = open_hardware(config.home, gpu, rules)
    with sole_owner(config.home, role="node", flag="--home"):
        credentials = await join(config)
        owner = OwnerWatch(config.owner, config.home, hardware, clock)
        try:
            await owner.start()
            from node.paused import stay_paused

            ended = await stay_paused(config, credentials, owner, clock, screen.show)
            if ended is not None:
                return ended
            from node.main import OWNER_PAUSED, run
            from plait.cli.settled import keep_imports

            keep_imports()
            leaving = await run(config, credentials, owner, screen.show)
        finally:
            owner.stop()
        if leaving.reason.code == OWNER_PAUSED:
            # Without the engine: whatever the driver and the libraries held goes back to the
            # system at once (decision 150).
            screen.close()
            start_anew()
        return leaving
