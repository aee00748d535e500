"""What a caller may learn of our failures: a status and a sentence, never an exception's text.

gRPC answers a message that it cannot decode, and an exception that nobody caught, with UNKNOWN and
the exception itself. Here the first is the caller's mistake, and the second is logged as ours.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from plait.errors import InvalidRequestError, ServiceError
from plait.log import get
from plait.wire.status import abort_with

log = get("calls")

_Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Behaviour = Callable[[Any, "aio.ServicerContext[Any, Any]"], Awaitable[Any]]
_UNREADABLE: Final = object()


class _Handler(Protocol):
    """What gRPC keeps of a method; one of the last four is set."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Any] | None
    response_serializer: Callable[[Any], bytes] | None
    unary_unary: _Behaviour | None
    unary_stream: _Behaviour | None
    stream_unary: _Behaviour | None
    stream_stream: _Behaviour | None


class PlainErrors(aio.ServerInterceptor):
    """Wraps every method of a server. Methods are coroutines, not generators."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Method | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Method | None":
        """The method's handler, wrapped; None where there is no such method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        return _wrapped(cast("_Handler", handler), handler_call_details.method)


def _wrapped(handler: _Handler, method: str) -> _Method:
    decode, encode = handler.request_deserializer, handler.response_serializer
    if handler.stream_stream is not None:  # messages are decoded as they are read: no sentinel
        guarded = _guarded(handler.stream_stream, method)
        return grpc.stream_stream_rpc_method_handler(guarded, decode, encode)
    decode = None if decode is None else _decoder(decode)
    if handler.unary_stream is not None:
        guarded = _guarded(handler.unary_stream, method)
        return grpc.unary_stream_rpc_method_handler(guarded, decode, encode)
    if handler.unary_unary is None:
        raise TypeError(f"{method} is of a kind that no service here has")
    guarded = _guarded(handler.unary_unary, method)
    return grpc.unary_unary_rpc_method_handler(guarded, decode, encode)


def _decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(content: bytes) -> Any:
        try:
            return decode(content)
        except DecodeError:
            return _UNREADABLE

    return decoded


def _guarded(behaviour: _Behaviour, method: str) -> _Behaviour:
    async def guarded(request: Any, context: "aio.ServicerContext[Any, Any]") -> Any:
        try:
            if request is _UNREADABLE:
                raise DecodeError
            return await behaviour(request, context)
        except aio.AbortError:
            raise
        except DecodeError:
            log.info("message_unreadable", method=method)
            message = "this is no message of this call, or it is damaged"
            await abort_with(context, InvalidRequestError(message, reason="message_malformed"))
        except Exception as error:  # root: of this call
            log.exception("bug", method=method, kind=type(error).__name__)
            failure = ServiceError("plait failed on this call; its log says why")
            await abort_with(context, failure)

    return guarded
