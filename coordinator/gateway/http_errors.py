"""plait's errors as OpenAI's error objects."""

import json
import math
from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from plait.errors import (
    AuthenticationError,
    CancelledByClientError,
    DeadlineError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    PlaitError,
    UnavailableError,
)

_STATUSES: Final[tuple[tuple[type[PlaitError], int, str], ...]] = (
    (InvalidRequestError, 400, "invalid_request_error"),
    (AuthenticationError, 401, "authentication_error"),
    (ModelError, 404, "invalid_request_error"),
    (OverloadedError, 429, "rate_limit_error"),
    (UnavailableError, 503, "service_unavailable_error"),
    (DeadlineError, 503, "service_unavailable_error"),
    (CancelledByClientError, 499, "cancelled_error"),
)
_RETRY_AFTER_S: Final = {429: "1", 503: "5"}
_RETRY_LATER_S: Final = {"not_enough_memory": "60"}
"""Until somebody has joined a node nothing changes."""
_SPECIAL: Final = {"body_too_large": 413, "body_timeout": 408, "not_found": 404}


def status_of(error: PlaitError) -> int:
    """The HTTP status of an error."""
    if error.code in _SPECIAL:
        return _SPECIAL[error.code]
    return next((status for kind, status, _ in _STATUSES if isinstance(error, kind)), 500)


def error_object(error: PlaitError) -> dict[str, object]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    kind = next((word for kind, _, word in _STATUSES if isinstance(error, kind)), "server_error")
    param = error.param if isinstance(error, InvalidRequestError) else None
    if isinstance(error, ModelError):
        param = "model"
    return {"error": {"message": error.message, "type": kind, "param": param, "code": error.code}}


MakeError = Callable[[PlaitError], dict[str, object]]
"""An API's object for an error."""


def error_response(error: PlaitError, make: MakeError = error_object) -> Response:
    """The error as a response, with Retry-After where a retry helps."""
    status = status_of(error)
    retry_after_s = _retry_after_s(error, status)
    headers = {"retry-after": retry_after_s} if retry_after_s is not None else {}
    if status in (408, 413):  # the rest of the body will not be read
        headers["connection"] = "close"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response(make(error), status, headers)


def _retry_after_s(error: PlaitError, status: int) -> str | None:
    if isinstance(error, OverloadedError) and error.retry_after_s is not None:
        return str(max(1, math.ceil(error.retry_after_s)))
    return _RETRY_LATER_S.get(error.code, _RETRY_AFTER_S.get(status))


def json_response(
    content: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Compact JSON in UTF-8."""
    return Response(json_bytes(content), status, headers, "application/json")


def json_bytes(content: object) -> bytes:
    """Compact JSON in UTF-8; halves of surrogate pairs, which clients may send, stay escapes."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")
