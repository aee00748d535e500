"""`/chat`: a small page to talk to the network from a browser, with an API key.

The page is static; what it does it does through the HTTP door, as any other client.
"""

from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

STATIC: Final = Path(__file__).parent / "static"
PATH: Final = "/chat"
_KINDS: Final = {"chat.css": "text/css", "chat.js": "text/javascript"}
_HEADERS: Final = {
    # Nothing from elsewhere, nothing inline: what a model says cannot become a script.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def chat_router() -> APIRouter:
    """The page and its two files."""
    router = APIRouter(include_in_schema=False)

    @router.get(PATH)
    async def page() -> Response:
        return FileResponse(STATIC / "chat.html", headers=_HEADERS, media_type="text/html")

    @router.get(f"{PATH}/{{name}}")
    async def asset(name: str) -> Response:
        if name not in _KINDS:
            raise HTTPException(404, "no such file")
        return FileResponse(STATIC / name, headers=_HEADERS, media_type=_KINDS[name])

    return router
