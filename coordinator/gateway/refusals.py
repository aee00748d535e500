"""From the core's reasons to typed errors."""

from collections.abc import Callable
from typing import Final

from plait.errors import (
    CancelledByClientError,
    DeadlineError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    PlaitError,
    ServiceError,
    UnavailableError,
)
from plait.types import Reason

_KINDS: Final[dict[str, type[PlaitError]]] = {
    "queue_full": OverloadedError,
    "kv_full": OverloadedError,
    "overloaded": OverloadedError,
    "coordinator_busy": OverloadedError,
    "deadline_exceeded": DeadlineError,
    "open_timeout": DeadlineError,
    "prefill_timeout": DeadlineError,
    "cancelled": CancelledByClientError,
    "model_not_found": ModelError,
}
_TOO_LONG: Final = frozenset({"context_exceeded", "request_too_large"})


def error_for(reason: Reason | None) -> PlaitError:
    """The error that a client gets for the core's `reason`.

    Whatever is not listed is something that befell a chain or a span: nobody could serve it now.
    """
    if reason is None:
        return ServiceError("the request failed, and nobody said why")
    if reason.code in _TOO_LONG:
        return InvalidRequestError(reason.message, param="max_tokens", reason=reason.code)
    if reason.code == "invalid_argument":
        return InvalidRequestError(reason.message)
    make: Callable[..., PlaitError] = _KINDS.get(reason.code, UnavailableError)
    return make(reason.message, reason=reason.code)
