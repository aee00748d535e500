"""Lets only signed-in browsers past: pages, and the socket that makes them live."""

from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.dashboard.sessions import Session, SessionStore

MOUNT_PATH: Final = "/dashboard"
COOKIE: Final = "plait_session"
OPEN_PREFIX: Final = "/_nicegui/"
"""NiceGUI's own scripts and fonts; they carry no figures."""

SECURITY_HEADERS: Final = {
    # The browser itself refuses any host but ours. NiceGUI's page needs inline script and eval.
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
        "connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}


def session_of(scope: Scope, sessions: SessionStore) -> Session | None:
    """The session whose cookie a request carries."""
    return sessions.find(cookie_of(scope))


def cookie_of(scope: Scope) -> str | None:
    """The session cookie's value, None where there is none."""
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(Headers(scope=scope).get("cookie", ""))
    except CookieError:
        return None
    return cookies[COOKIE].value if COOKIE in cookies else None


class SessionGate:
    """ASGI middleware around the NiceGUI application."""

    def __init__(self, app: ASGIApp, *, sessions: SessionStore) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = str(scope["path"]).removeprefix(MOUNT_PATH)
        is_open = path.startswith(OPEN_PREFIX)
        if not is_open and (
            session_of(scope, self._sessions) is None or not _is_same_origin(scope)
        ):
            await _refuse(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if not is_open:
                    headers["cache-control"] = "no-store"
            await send(message)

        await self._app(scope, receive, send_hardened)


def _is_same_origin(scope: Scope) -> bool:
    """Whether a browser that names an origin names this host: others may not open the socket."""
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 4401})
        return
    await RedirectResponse(f"{MOUNT_PATH}/login", status_code=303)(scope, receive, send)
