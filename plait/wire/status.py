"""plait's errors <-> gRPC statuses. The reason word and the parameter travel as metadata."""

import math
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from plait.errors import (
    AuthenticationError,
    CancelledByClientError,
    ConfigError,
    DeadlineError,
    FrameError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    PlaitError,
    ServiceError,
    TicketError,
    UnavailableError,
    WeightsError,
)

REASON_KEY: Final = "plait-reason"
PARAM_KEY: Final = "plait-param"
RETRY_KEY: Final = "plait-retry-after-ms"

_CODES: Final[tuple[tuple[type[PlaitError], grpc.StatusCode], ...]] = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (ConfigError, grpc.StatusCode.FAILED_PRECONDITION),
    (WeightsError, grpc.StatusCode.DATA_LOSS),
    (ModelError, grpc.StatusCode.NOT_FOUND),
    (AuthenticationError, grpc.StatusCode.UNAUTHENTICATED),
    (TicketError, grpc.StatusCode.PERMISSION_DENIED),
    (FrameError, grpc.StatusCode.INVALID_ARGUMENT),
    (OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (CancelledByClientError, grpc.StatusCode.CANCELLED),
)

_ERRORS: Final[dict[grpc.StatusCode, type[PlaitError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigError,
    grpc.StatusCode.NOT_FOUND: ModelError,
    grpc.StatusCode.DATA_LOSS: WeightsError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: AuthenticationError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: CancelledByClientError,
}

_TRANSPORT_WORDS: Final = (
    ("Connection refused", "the connection was refused: is it running, and is the port right?"),
    ("errors resolving", "this machine's DNS does not know the name"),
    ("lookup failed", "this machine's DNS does not know the name"),
    ("WRONG_VERSION_NUMBER", "no TLS is spoken there: is the port right?"),
    ("CERTIFICATE_VERIFY_FAILED", "another network's coordinator answers there, or a wrong CA"),
    ("Handshake failed", "no TLS as plait speaks it: are the port and the CA right?"),
    ("handshake failed", "no TLS as plait speaks it: are the port and the CA right?"),
    ("Socket closed", "the connection was closed"),
    ("Connection reset", "the connection was closed"),
    ("No route to host", "there is no route to it"),
    ("Network is unreachable", "this machine's network is down"),
    ("Connection timed out", "it did not answer: is the address right, and the port open?"),
    ("GOAWAY", "the connection was closed"),
)
"""Signs in what gRPC's core says of a lost connection, in the order they are looked for."""


def code_of(error: PlaitError) -> grpc.StatusCode:
    """The canonical status for one of our errors."""
    if error.code == "not_found":
        return grpc.StatusCode.NOT_FOUND
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def number_of(code: grpc.StatusCode) -> int:
    """The number of a canonical code, for `Status.code` in a message."""
    number: int = code.value[0]
    return number


async def abort_with(context: aio.ServicerContext[Any, Any], error: PlaitError) -> NoReturn:
    """End the call with the error's status, message, reason and parameter. Never returns."""
    metadata = [(REASON_KEY, error.code)]
    if isinstance(error, InvalidRequestError) and error.param is not None:
        metadata.append((PARAM_KEY, error.param))
    if isinstance(error, OverloadedError) and error.retry_after_s is not None:
        metadata.append((RETRY_KEY, str(math.ceil(error.retry_after_s * 1e3))))
    await context.abort(code_of(error), error.message, trailing_metadata=tuple(metadata))
    raise AssertionError("unreachable: abort raises")


def error_from_rpc(error: grpc.RpcError) -> PlaitError:
    """The typed error behind a failed call: aio.AioRpcError or the sync API's RpcError."""
    code = error.code() if isinstance(error, grpc.Call | aio.AioRpcError) else None
    details = error.details() if isinstance(error, grpc.Call | aio.AioRpcError) else None
    message = details or (f"the call failed with {code.name}" if code else "the call failed")
    metadata = _metadata(error)
    reason = metadata.get(REASON_KEY)
    if reason is None and code is grpc.StatusCode.UNAVAILABLE:
        message = _in_words(message)
    kind = _ERRORS.get(code, ServiceError) if code is not None else ServiceError
    if kind is InvalidRequestError or reason == "not_found":
        return InvalidRequestError(message, param=metadata.get(PARAM_KEY), reason=reason)
    if kind is OverloadedError:
        wait_ms = metadata.get(RETRY_KEY, "")
        known = wait_ms.isascii() and wait_ms.isdigit() and len(wait_ms) < 12
        after_s = int(wait_ms) / 1e3 if known else None
        return OverloadedError(message, reason=reason, retry_after_s=after_s)
    return kind(message, reason=reason)


def _in_words(details: str) -> str:
    """What gRPC's core says of a connection that failed, for people. Unknown words stay."""
    return next((words for sign, words in _TRANSPORT_WORDS if sign in details), details)


def _metadata(error: grpc.RpcError) -> dict[str, str]:
    if not isinstance(error, grpc.Call | aio.AioRpcError):
        return {}
    pairs: Iterable[tuple[str, str | bytes]] = error.trailing_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}
