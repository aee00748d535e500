"""The doors of the dashboard: what needs a session and what does not."""

import re
from collections.abc import Awaitable, Callable

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from coordinator.dashboard.assets import SHEETS, STATIC
from coordinator.dashboard.gate import COOKIE, SessionGate
from coordinator.dashboard.login import login_router
from coordinator.dashboard.sessions import LoginLimiter, SessionStore
from plait.clock import ManualClock
from tests.unit.dashboard.fakes import ADMIN_KEY, CLIENT_KEY, admin_and_client


class Door:
    """A login page and a gate in front of one secret."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.sessions = SessionStore(clock=clock)
        limiter = LoginLimiter(clock=clock)
        self.app = FastAPI()
        self.app.include_router(
            login_router(sessions=self.sessions, limiter=limiter, keys=admin_and_client())
        )
        self.app.mount("/dashboard", SessionGate(_secret, sessions=self.sessions))

    def client(self, cookie: str = "") -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://plait.test",
            headers={"cookie": f"{COOKIE}={cookie}"} if cookie else {},
        )


async def _secret(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("the network")(scope, receive, send)


@pytest.fixture
def door() -> Door:
    return Door()


async def test_an_admin_key_opens_the_dashboard(door: Door) -> None:
    async with door.client() as client:
        refused = await client.get("/dashboard/")
        assert (refused.status_code, refused.headers["location"]) == (303, "/dashboard/login")
        entered = await client.post("/dashboard/login", data={"key": f" {ADMIN_KEY}\n"})
        assert (entered.status_code, entered.headers["location"]) == (303, "/dashboard/")
        cookie = entered.headers["set-cookie"].lower()
        for attribute in ("httponly", "samesite=lax", "path=/dashboard"):
            assert attribute in cookie
        shown = await client.get("/dashboard/")
        assert shown.text == "the network"
        assert shown.headers["cache-control"] == "no-store"
        assert "script-src 'self'; style-src 'self';" in shown.headers["content-security-policy"]
        await client.post("/dashboard/logout")
        assert (await client.get("/dashboard/")).status_code == 303


async def test_a_clients_key_does_not(door: Door) -> None:
    async with door.client() as client:
        answer = await client.post("/dashboard/login", data={"key": CLIENT_KEY})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "body", [b"", b"key=", b"key=wrong", b"other=1", b"\xff\xfe", b"key=" + b"x" * 100_000]
)
async def test_anything_else_is_refused(door: Door, body: bytes) -> None:
    async with door.client() as client:
        answer = await client.post("/dashboard/login", content=body)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


async def test_guessing_is_slowed_down_even_with_the_right_key(door: Door) -> None:
    async with door.client() as client:
        for _ in range(5):
            assert (await client.post("/dashboard/login", data={"key": "no"})).status_code == 401
        answer = await client.post("/dashboard/login", data={"key": ADMIN_KEY})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "60"


async def test_a_link_signs_in_once(door: Door) -> None:
    secret = door.sessions.issue_link()
    async with door.client() as client:
        assert (await client.get(f"/dashboard/link/{secret}")).status_code == 303
        assert (await client.get("/dashboard/")).text == "the network"
    async with door.client() as client:
        assert (await client.get(f"/dashboard/link/{secret}")).status_code == 401
        assert (await client.get("/dashboard/")).status_code == 303


@pytest.mark.parametrize("cookie", ["guess", "a=b;c", '"'])
async def test_a_wrong_cookie_is_no_session(door: Door, cookie: str) -> None:
    async with door.client(cookie) as client:
        assert (await client.get("/dashboard/")).status_code == 303


async def test_the_socket_needs_a_session_of_this_very_site(door: Door) -> None:
    cookie = door.sessions.open(key_id=None, display_name="")
    site = "http://plait.test"
    assert await _socket(door.app, cookie, site) != "websocket.close"
    assert await _socket(door.app, "", site) == "websocket.close"
    assert await _socket(door.app, cookie, "http://elsewhere.test") == "websocket.close"


async def _socket(app: FastAPI, cookie: str, origin: str) -> str:
    """The type of the first message that answers an opening socket."""
    headers = [
        (b"host", b"plait.test"),
        (b"origin", origin.encode()),
        (b"cookie", f"{COOKIE}={cookie}".encode()),
    ]
    scope: Scope = {
        "type": "websocket",
        "path": "/dashboard/_nicegui_ws/socket.io",
        "raw_path": b"/dashboard/_nicegui_ws/socket.io",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "subprotocols": [],
    }
    answers: list[str] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        answers.append(message["type"])

    run: Callable[[Scope, Receive, Send], Awaitable[None]] = app
    await run(scope, receive, send)
    return answers[0]


async def test_every_style_sheet_is_asked_for_and_the_narrow_one_last(door: Door) -> None:
    async with door.client() as client:
        page = (await client.get("/dashboard/login")).text
    asked = re.findall(r"/dashboard/assets/(\w+)\.css", page)
    assert asked == list(SHEETS)
    assert set(asked) == {sheet.stem for sheet in STATIC.glob("*.css")}
    assert asked[-1] == "narrow"
