"""Looks at the network when nobody else does: histories begin before somebody comes."""

import asyncio
import contextlib
from typing import Final

from nicegui import App

from coordinator.dashboard.shelf import KEPT_MAX
from coordinator.dashboard.snapshot import SharedSnapshot
from coordinator.ports import RouteArchive
from plait import log
from plait.errors import PlaitError

PERIOD_S: Final = 2.0
_log = log.get("dashboard")


def watch(app: App, snapshot: SharedSnapshot, routes: RouteArchive) -> None:
    """From the application's start to its end."""
    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        tasks.append(asyncio.create_task(_look(snapshot, routes), name="dashboard history"))

    async def stop() -> None:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    app.on_startup(start)
    app.on_shutdown(stop)


async def _look(snapshot: SharedSnapshot, routes: RouteArchive) -> None:
    try:
        snapshot.recall(await routes.recent(KEPT_MAX))
    except PlaitError as error:
        _log.warning("routes_not_recalled", error=error.message)
    while True:
        snapshot.current()
        await asyncio.sleep(PERIOD_S)
