"""Puts the dashboard on the gateway's application, at /dashboard.

NiceGUI keeps one application per process, so there is one dashboard per process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nicegui
from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles
from nicegui import app as nicegui_app
from nicegui import ui

from coordinator.dashboard import pages
from coordinator.dashboard.assets import MOUNT_PATH, STATIC
from coordinator.dashboard.cached import Cached
from coordinator.dashboard.gate import SessionGate
from coordinator.dashboard.login import login_router
from coordinator.dashboard.policy import is_known
from coordinator.dashboard.sessions import LoginLimiter, SessionStore
from coordinator.dashboard.snapshot import SharedSnapshot
from coordinator.dashboard.sources import Sources
from coordinator.dashboard.watch import watch
from coordinator.ports import (
    ChronicleReader,
    Inbox,
    KeyStore,
    NodeRegister,
    PlanPreviewer,
    RequestArchive,
    RouteArchive,
    TelemetryReader,
    TokenStore,
    ViewSource,
)
from plait import log
from plait.clock import Clock
from plait.errors import ConfigError
from plait.types import ModelSpec

TEMPLATE: Final = Path(nicegui.__file__).parent / "templates" / "index.html"
_log = log.get("dashboard")
_mounted: list[FastAPI] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A mounted dashboard."""

    sessions: SessionStore

    def new_login_path(self) -> str:
        """A path that signs in once, within 15 minutes; for the coordinator to print."""
        return f"{MOUNT_PATH}/link/{self.sessions.issue_link()}"


def mount(
    app: FastAPI,
    *,
    views: ViewSource,
    telemetry: TelemetryReader | None,
    keys: KeyStore,
    tokens: TokenStore,
    register: NodeRegister,
    archive: RequestArchive,
    routes: RouteArchive,
    chronicle: ChronicleReader,
    previewer: PlanPreviewer,
    inbox: Inbox,
    clock: Clock,
    join_address: str,
    specs: Sequence[ModelSpec],
) -> Dashboard:
    """Mount on `app` before it starts. `join_address` is what join lines name, host:port; `specs`
    are the models that are served.

    Raises ConfigError for a second dashboard in the same process.
    """
    if _mounted:
        raise ConfigError("this process has a dashboard already", reason="dashboard_mounted")
    _mounted.append(app)
    sessions = SessionStore(clock=clock)
    sources = Sources(
        snapshot=SharedSnapshot(views=views, telemetry=telemetry, clock=clock),
        keys=keys,
        views=views,
        tokens=tokens,
        register=register,
        archive=archive,
        chronicle=chronicle,
        previewer=previewer,
        inbox=inbox,
        sessions=sessions,
        clock=clock,
        join_address=join_address,
        specs=specs,
        known_nodes=Cached(clock),
        past_requests=Cached(clock),
    )

    @app.get(MOUNT_PATH, include_in_schema=False)
    async def add_slash() -> RedirectResponse:
        return RedirectResponse(f"{MOUNT_PATH}/", status_code=307)

    # Before NiceGUI's mount, which would take these paths too.
    app.mount(f"{MOUNT_PATH}/assets", StaticFiles(directory=STATIC), name="dashboard-assets")
    app.include_router(
        login_router(sessions=sessions, limiter=LoginLimiter(clock=clock), keys=keys)
    )
    pages.register(sources)
    watch(nicegui_app, sources.snapshot, routes)
    is_lax = not is_known(TEMPLATE.read_bytes())
    if is_lax:
        _log.warning("dashboard_policy_lax", nicegui=nicegui.__version__)
    nicegui_app.add_middleware(SessionGate, sessions=sessions, is_lax=is_lax)
    ui.run_with(
        app,
        mount_path=MOUNT_PATH,
        title="plait",
        dark=None,
        language="en-US",
        # Nothing is bound: without this NiceGUI polls ten times a second, idle or not.
        binding_refresh_interval=None,
        tailwind=False,
        show_welcome_message=False,
    )
    return Dashboard(sessions=sessions)
