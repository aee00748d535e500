"""GatewayService: the SDK's door over gRPC. Closing a call cancels its generation."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from coordinator.gateway.auth import Authenticator
from coordinator.gateway.catalogue import Catalogue
from coordinator.gateway.door_codec import happening_to_proto, order_from_proto
from coordinator.gateway.generate import Generator
from coordinator.gateway.happenings import CallDelta, Delta, Finished
from coordinator.gateway.limits import DoorLimits, Turnstile
from coordinator.gateway.reader import Reader
from coordinator.ports import ApiKey, ViewSource
from plait.errors import (
    CancelledByClientError,
    DeadlineError,
    InvalidRequestError,
    PlaitError,
    ServiceError,
)
from plait.log import get
from plait.types import FinishReason, LayerSpan
from plait.wire import codec
from plait.wire.status import abort_with
from plait.wire.trace_context import TRACEPARENT, TRACESTATE, TraceParent, read_trace_parent
from plait.wire.v1 import gateway_pb2, gateway_pb2_grpc

log = get("door")
Answer = TypeVar("Answer")
AnyContext = aio.ServicerContext[object, object]
_Generate = aio.ServicerContext[gateway_pb2.GenerateRequest, gateway_pb2.GenerateEvent]
_Models = aio.ServicerContext[gateway_pb2.ListModelsRequest, gateway_pb2.ListModelsResponse]
_Status = aio.ServicerContext[
    gateway_pb2.GetServiceStatusRequest, gateway_pb2.GetServiceStatusResponse
]
SERVICE: Final = "plait.wire.v1.GatewayService"
_RUNNING: Final = frozenset({"opening", "prefill", "decode"})


class GatewayDoor(gateway_pb2_grpc.GatewayServiceServicer):
    """Implements GatewayService on the coordinator's public port."""

    def __init__(
        self,
        *,
        generator: Generator,
        catalogue: Catalogue,
        authenticator: Authenticator,
        turnstile: Turnstile,
        views: ViewSource,
        limits: DoorLimits,
    ) -> None:
        self._generator = generator
        self._catalogue = catalogue
        self._authenticator = authenticator
        self._turnstile = turnstile
        self._views = views
        self._limits = limits

    def add_to(self, server: aio.Server) -> None:
        """Serve on `server`. Not by the generated function: what cannot be decoded, such as text
        that is no UTF-8, is to be a client's mistake and not a failure of ours."""
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(self, server)
        handler = grpc.unary_stream_rpc_method_handler(
            self.Generate,
            request_deserializer=_decode,
            response_serializer=gateway_pb2.GenerateEvent.SerializeToString,
        )
        server.add_registered_method_handlers(SERVICE, {"Generate": handler})

    async def Generate(  # type: ignore[override]  # noqa: N802 - a coroutine, to bound writes
        self, request: gateway_pb2.GenerateRequest | DecodeError, context: _Generate
    ) -> None:
        """Stream one generation."""
        try:
            key = await self._authenticate(context)
            if isinstance(request, DecodeError):
                raise InvalidRequestError(
                    f"the request cannot be read: {request}", reason="invalid_utf8"
                )
            order = replace(order_from_proto(request), trace=_trace(context))
            with self._turnstile.enter(key_id=key.key_id, address=_address(context), num=1):
                started = self._generator.start(order, key_id=key.key_id, limits=key.limits)
                async with await started as reader:
                    await self._send_all(reader, context)
        except PlaitError as error:
            await abort_with(cast("AnyContext", context), error)

    async def _send_all(self, reader: Reader, context: _Generate) -> None:
        has_text = False
        async for happening in reader:
            has_text = has_text or isinstance(happening, Delta | CallDelta)
            failure = _failure(happening) if isinstance(happening, Finished) else None
            if failure is None or has_text:
                event = happening_to_proto(
                    happening, reader.generation.tokenizer, self._display_names()
                )
                await self._write(event, context)
            if failure is not None:
                raise failure

    async def _write(self, event: gateway_pb2.GenerateEvent, context: _Generate) -> None:
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await context.write(event)
        except TimeoutError:
            log.info("client_stalled", address=_address(context))
            raise DeadlineError(
                f"the client did not read for {self._limits.stall_s:g} s", reason="client_stalled"
            ) from None

    async def ListModels(  # noqa: N802 - gRPC's name
        self, request: gateway_pb2.ListModelsRequest, context: _Models
    ) -> gateway_pb2.ListModelsResponse:
        """The served models."""
        await self._admit(context)
        return gateway_pb2.ListModelsResponse(models=self._models())

    async def GetServiceStatus(  # noqa: N802 - gRPC's name
        self, request: gateway_pb2.GetServiceStatusRequest, context: _Status
    ) -> gateway_pb2.GetServiceStatusResponse:
        """What clients may know of the network."""
        await self._admit(context)
        view = self._views.view()
        return gateway_pb2.GetServiceStatusResponse(
            network_id=view.network_id,
            software_version=view.software_version,
            models=self._models(),
            num_nodes_serving=sum(node.state == "serving" for node in view.nodes),
            num_requests_running=sum(request.state in _RUNNING for request in view.requests),
            num_requests_queued=view.num_queued,
        )

    def _models(self) -> list[gateway_pb2.ServedModel]:
        views = {model.model_id: model for model in self._views.view().models}
        served: list[gateway_pb2.ServedModel] = []
        for spec in self._catalogue.specs.values():
            view = views.get(spec.model_id)
            missing = view.missing if view is not None else ((0, spec.num_layers),)
            served.append(
                gateway_pb2.ServedModel(
                    model_id=spec.model_id,
                    context_tokens_max=spec.context_tokens_max,
                    is_ready=view is not None and view.is_ready,
                    missing=[codec.span_to_proto(LayerSpan(*span)) for span in missing],
                    spec=codec.model_spec_to_proto(spec),
                )
            )
        return served

    def _display_names(self) -> Callable[[str], str]:
        def name_of(node_id: str) -> str:
            nodes = self._views.view().nodes
            return next((n.display_name for n in nodes if n.node_id == node_id), "")

        return name_of

    async def _admit(
        self, context: aio.ServicerContext[object, object] | _Models | _Status
    ) -> None:
        try:
            await self._authenticate(context)
        except PlaitError as error:
            await abort_with(cast("AnyContext", context), error)

    async def _authenticate(self, context: object) -> ApiKey:
        metadata = cast("AnyContext", context).invocation_metadata() or ()
        values = [value for key, value in metadata if key.lower() == "authorization"]
        header = values[0] if len(values) == 1 else None
        return await self._authenticator.check(header if isinstance(header, str) else None)


def _decode(content: bytes) -> gateway_pb2.GenerateRequest | DecodeError:
    try:
        return gateway_pb2.GenerateRequest.FromString(content)
    except DecodeError as error:
        return error


def _failure(finished: Finished) -> PlaitError | None:
    if finished.reason is FinishReason.ERROR:
        return finished.error or ServiceError("the generation failed, and nobody said why")
    if finished.reason is FinishReason.CANCELLED:
        return CancelledByClientError("the generation was cancelled")
    return None


def _trace(context: object) -> TraceParent | None:
    metadata = cast("AnyContext", context).invocation_metadata() or ()
    said = {key: value for key, value in metadata if isinstance(value, str)}
    return read_trace_parent(said.get(TRACEPARENT), said.get(TRACESTATE))


def _address(context: object) -> str:
    """The client's address without its port."""
    return cast("AnyContext", context).peer().rpartition(":")[0] or "unknown"
