"""Sign in with an admin key or a one-time link; sign out. Plain HTML that needs no script."""

import html
import urllib.parse
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from coordinator.dashboard.assets import MOUNT_PATH, SHEET_LINKS, STATIC
from coordinator.dashboard.gate import COOKIE, SECURITY_HEADERS
from coordinator.dashboard.policy import policy
from coordinator.dashboard.sessions import SESSION_MS, LoginLimiter, SessionStore
from coordinator.ports import KeyStore
from plait import log
from plait.errors import AuthenticationError

BODY_BYTES_MAX: Final = 4_096

_log = log.get("dashboard")


def login_router(*, sessions: SessionStore, limiter: LoginLimiter, keys: KeyStore) -> APIRouter:
    """The routes that need no session."""
    router = APIRouter(prefix=MOUNT_PATH, include_in_schema=False)
    template = (STATIC / "login.html").read_text("utf-8").replace("{{sheets}}", SHEET_LINKS)

    def page(message: str = "", *, status: int = 200, wait_ms: int = 0) -> HTMLResponse:
        note = f'<p class="login-error" role="alert">{html.escape(message)}</p>' if message else ""
        headers = {
            **SECURITY_HEADERS,
            "content-security-policy": policy(),
            "cache-control": "no-store",
        }
        if wait_ms:
            headers["retry-after"] = str(-(-wait_ms // 1_000))
        return HTMLResponse(template.replace("{{note}}", note), status, headers)

    @router.get("/login")
    async def show() -> HTMLResponse:
        return page()

    @router.post("/login")
    async def sign_in(request: Request) -> Response:
        address = request.client.host if request.client is not None else "unknown"
        wait_ms = limiter.wait_ms(address)
        if wait_ms > 0:
            wait_s = -(-wait_ms // 1_000)
            return page(f"Too many attempts. Try again in {wait_s} s.", status=429, wait_ms=wait_ms)
        secret = await _form_field(request, "key")
        try:
            if secret is None:
                raise AuthenticationError("no key")
            key = await keys.verify_key(secret)
        except AuthenticationError:
            limiter.failed(address)
            _log.warning("dashboard_login_refused", address=address)
            return page("That key is unknown or revoked.", status=401)
        if not key.is_admin:
            limiter.failed(address)
            return page("That key may use models, not administer the network.", status=403)
        _log.info("dashboard_login", key_id=key.key_id, address=address)
        return _enter(request, sessions.open(key_id=key.key_id, display_name=key.display_name))

    @router.get("/link/{secret}")
    async def follow_link(request: Request, secret: str) -> Response:
        address = request.client.host if request.client is not None else "unknown"
        if limiter.wait_ms(address) > 0 or not sessions.redeem_link(secret):
            limiter.failed(address)
            return page("This link was used already, or is older than 15 minutes.", status=401)
        _log.info("dashboard_login", key_id="link", address=address)
        return _enter(request, sessions.open(key_id=None, display_name="login link"))

    @router.post("/logout")
    async def sign_out(request: Request) -> Response:
        sessions.close(request.cookies.get(COOKIE))
        response = RedirectResponse(f"{MOUNT_PATH}/login", status_code=303)
        response.delete_cookie(COOKIE, path=MOUNT_PATH)
        return response

    return router


def _enter(request: Request, cookie: str) -> Response:
    response = RedirectResponse(f"{MOUNT_PATH}/", status_code=303)
    response.headers["cache-control"] = "no-store"
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=SESSION_MS // 1_000,
        path=MOUNT_PATH,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return response


async def _form_field(request: Request, name: str) -> str | None:
    """One field of a small urlencoded body; None where it is missing, huge or no text."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return None
    try:
        fields = urllib.parse.parse_qs(body.decode(), strict_parsing=True, max_num_fields=8)
    except ValueError:
        return None
    values = fields.get(name)
    return values[0].strip() if values else None
