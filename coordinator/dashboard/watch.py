"""Looks at the network when nobody else does: histories begin before somebody comes."""

import asyncio
import contextlib
from typing import Final

from nicegui import App

from coordinator.dashboard.snapshot import SharedSnapshot

PERIOD_S: Final = 2.0


def watch(app: App, snapshot: SharedSnapshot) -> None:
    """From the application's start to its end."""
    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        tasks.append(asyncio.create_task(_look(snapshot), name="dashboard history"))

    async def stop() -> None:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    app.on_startup(start)
    app.on_shutdown(stop)


async def _look(snapshot: SharedSnapshot) -> None:
    while True:
        snapshot.current()
        await asyncio.sleep(PERIOD_S)
