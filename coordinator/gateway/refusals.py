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
    "overloaded": OverloadedError,
    "queue_full": OverloadedError,
    "kv_full": OverloadedError,
    "inbox_full": OverloadedError,
    "unavailable": UnavailableError,
    "layers_missing": UnavailableError,
    "span_unavailable": UnavailableError,
    "no_nodes": UnavailableError,
    "no_route": UnavailableError,
    "deadline_exceeded": DeadlineError,
    "queue_timeout": DeadlineError,
    "too_many_attempts": UnavailableError,
    "cancelled": CancelledByClientError,
    "model_not_found": ModelError,
    "unknown_model": ModelError,
}


def error_for(reason: Reason | None) -> PlaitError:
    """The error that a client gets for the core's `reason`."""
    if reason is None:
        return ServiceError("the request failed, and nobody said why")
    if reason.code in ("context_exceeded", "request_too_long"):
        return InvalidRequestError(reason.message, param="max_tokens", reason=reason.code)
    make: Callable[..., PlaitError] = _KINDS.get(reason.code, ServiceError)
    return make(reason.message, reason=reason.code)
