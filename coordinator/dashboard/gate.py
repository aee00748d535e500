"""Lets only signed-in browsers past: pages, and the socket that makes them live."""

from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.dashboard.assets import MOUNT_PATH
from coordinator.dashboard.faults import fault_page
from coordinator.dashboard.policy import mark, policy
from coordinator.dashboard.sessions import Session, SessionStore

COOKIE: Final = "plait_session"
HTTP_FAULTS: Final = 400
OPEN_PREFIX: Final = "/_nicegui/"
"""NiceGUI's own scripts and fonts; they carry no figures."""

SECURITY_HEADERS: Final = {
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

    def __init__(self, app: ASGIApp, *, sessions: SessionStore, is_lax: bool = False) -> None:
        """`is_lax`: pages are not as `policy.mark` knows them."""
        self._app = app
        self._sessions = sessions
        self._is_lax = is_lax

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

        host = Headers(scope=scope).get("host", "")
        await self._app(scope, receive, _Hardened(send, host, is_open=is_open, is_lax=self._is_lax))


class _Hardened:
    """A `send` that adds what a browser should know. Pages are held until they are whole, and get
    a nonce each; files and the socket's polls pass as they are."""

    def __init__(self, send: Send, host: str, *, is_open: bool, is_lax: bool) -> None:
        self._send = send
        self._host = host
        self._is_lax = is_lax
        self._is_open = is_open
        self._held: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            headers["content-security-policy"] = policy(self._host)
            if not self._is_open:
                headers["cache-control"] = "no-store"
            if headers.get("content-type", "").startswith("text/html"):
                self._held = message
                return
        if self._held is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            await self._send_page(self._held)
            return
        await self._send(message)

    async def _send_page(self, start: Message) -> None:
        status = int(start["status"])
        page = mark(self._body if status < HTTP_FAULTS else fault_page(status))
        self._held, self._body = None, b""
        headers = MutableHeaders(scope=start)
        headers["content-security-policy"] = policy(self._host, page.nonce, is_lax=self._is_lax)
        headers["content-length"] = str(len(page.body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": page.body})


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
