"""What every page has: head, navigation, notices, and a tick that ends with the session."""

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request
from nicegui import ui

from coordinator.dashboard.assets import MOUNT_PATH, SHEET_LINKS
from coordinator.dashboard.gate import session_of
from coordinator.dashboard.live import Action, ActionHandler, Live
from coordinator.dashboard.markup import text
from coordinator.dashboard.sources import Sources
from plait import log
from plait.errors import PlaitError

TICK_S: Final = 1.0
CHECK_EVERY_TICKS: Final = 15
LINKS: Final = (
    ("", "Overview"),
    ("map", "Map"),
    ("nodes", "Nodes"),
    ("models", "Models"),
    ("requests", "Requests"),
    ("plan", "Plan"),
    ("events", "Events"),
    ("enrolment", "Enrolment"),
    ("keys", "API keys"),
)
HEAD: Final = f"""
<meta name="color-scheme" content="light dark">
<link rel="icon" href="{MOUNT_PATH}/assets/plait.svg" type="image/svg+xml">
{SHEET_LINKS}
<script src="{MOUNT_PATH}/assets/theme.js"></script>
"""

_log = log.get("dashboard")


class Frame:
    """One viewer's page. Created inside a NiceGUI page function."""

    def __init__(self, sources: Sources, request: Request, *, at: str) -> None:
        self._sources = sources
        self._scope = request.scope
        self._ticks = 0
        ui.add_head_html(HEAD)
        self._header = Live(classes="top")
        self._header.show(self._draw_header(at))
        self._notice = Live(classes="notice")
        self._regions: list[Live] = []
        self._classes = "page"

    async def run(self, tick: Callable[[], Awaitable[None]]) -> None:
        """Call `tick` now, and once a second for as long as the session lives."""

        async def guarded() -> None:
            if not await self.is_signed_in():
                self._header.leave_to(f"{MOUNT_PATH}/login")
                return
            await self._try(tick)

        await self._try(tick)
        ui.add_body_html(self._first_paint())
        ui.timer(TICK_S, guarded, immediate=False)

    async def _try(self, tick: Callable[[], Awaitable[None]]) -> None:
        try:
            await tick()
        except PlaitError as error:
            self.say(error.message, tone="bad")

    async def is_signed_in(self) -> bool:
        """Whether the session lives; now and then also whether its key still does."""
        session = session_of(self._scope, self._sources.sessions)
        if session is None:
            return False
        self._ticks += 1
        if session.key_id is None or self._ticks % CHECK_EVERY_TICKS:
            return True
        keys = {key.key_id: key for key in await self._sources.keys.list_keys()}
        key = keys.get(session.key_id)
        if key is None or key.is_revoked or not key.is_admin:
            self._sources.sessions.close_key(session.key_id)
            return False
        return True

    def regions(
        self,
        count: int,
        do: Callable[[Action], Awaitable[None]] | None = None,
        *,
        is_narrow: bool = False,
    ) -> list[Live]:
        """The page's parts, from top to bottom; what is pressed in them goes to `do`."""

        async def on_action(action: Action) -> None:
            if do is not None:
                await self.attempt(do(action))

        handler: ActionHandler | None = on_action if do is not None else None
        self._classes = "page page-narrow" if is_narrow else "page"
        # A plain element: NiceGUI's own frame around it is the page's main landmark.
        with ui.element("div").props("id=main tabindex=-1").classes(self._classes):
            self._regions = [Live(handler) for _ in range(count)]
        return self._regions

    def say(self, message: str, *, tone: str = "ok") -> None:
        """Show a notice until the next one."""
        role = "alert" if tone == "bad" else "status"
        self._notice.show(
            f'<div class="banner banner-{tone}" role="{role}"><span>{text(message)}</span></div>'
        )

    async def attempt(self, doing: Awaitable[None]) -> None:
        """Await an action of a signed-in viewer; a failure becomes a notice."""
        if session_of(self._scope, self._sources.sessions) is None:
            return
        try:
            await doing
        except PlaitError as error:
            _log.info("dashboard_action_failed", reason=error.code)
            self.say(error.message, tone="bad")

    def _first_paint(self) -> str:
        """The same page as plain HTML, seen until scripts have come; static/live.js removes it.
        Inert: nothing can be pressed whose press would be lost."""
        regions = "".join(f"<div>{region.markup}</div>" for region in self._regions)
        return (
            '<div id="first-paint" inert aria-hidden="true">'
            f'<div class="top">{self._header.markup}</div>'
            f'<div class="{self._classes}">{regions}</div></div>'
        )

    def _draw_header(self, at: str) -> str:
        session = session_of(self._scope, self._sources.sessions)
        who = "" if session is None else text(session.display_name)
        links = "".join(
            f'<a href="{MOUNT_PATH}/{path}"{_current(path == at)}>{title}</a>'
            for path, title in LINKS
        )
        view = self._sources.snapshot.current().view
        return (
            '<header class="bar"><a class="skip" href="#main">Skip to content</a>'
            f'<a class="brand" href="{MOUNT_PATH}/"><img src="{MOUNT_PATH}/assets/plait.svg" '
            'alt="" width="24" height="24">plait</a>'
            f'<nav aria-label="Pages">{links}</nav>'
            f'<span class="bar-net mono" title="network id">{text(view.network_id)}</span>'
            '<button type="button" class="btn btn-quiet" data-theme-toggle data-keep '
            'title="Switch theme">Theme</button>'
            f'<form class="plain" method="post" action="{MOUNT_PATH}/logout" data-native>'
            f'<button class="btn btn-quiet" title="signed in as {who}">Sign out</button></form>'
            "</header>"
        )


def _current(is_current: bool) -> str:
    return ' aria-current="page"' if is_current else ""
