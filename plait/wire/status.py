"""plait's errors <-> gRPC statuses. The reason word and the parameter travel as metadata."""

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
    await context.abort(code_of(error), error.message, trailing_metadata=tuple(metadata))
    raise AssertionError("unreachable: abort raises")


def error_from_rpc(error: grpc.RpcError) -> PlaitError:
    """The typed error behind a failed call: aio.AioRpcError or the sync API's RpcError."""
    code = error.code() if isinstance(error, grpc.Call | aio.AioRpcError) else None
    details = error.details() if isinstance(error, grpc.Call | aio.AioRpcError) else None
    message = details or (f"the call failed with {code.name}" if code else "the call failed")
    metadata = _metadata(error)
    reason = metadata.get(REASON_KEY)
    kind = _ERRORS.get(code, ServiceError) if code is not None else ServiceError
    if kind is InvalidRequestError or reason == "not_found":
        return InvalidRequestError(message, param=metadata.get(PARAM_KEY), reason=reason)
    return kind(message, reason=reason)


def _metadata(error: grpc.RpcError) -> dict[str, str]:
    if not isinstance(error, grpc.Call | aio.AioRpcError):
        return {}
    pairs: Iterable[tuple[str, str | bytes]] = error.trailing_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}
