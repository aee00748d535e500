"""The client for asyncio: the same methods, awaited."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Unpack, cast

import grpc
from grpc import aio

from plait.errors import CancelledByClientError
from plait.sdk.fold import Fold, model_entries, service_status
from plait.sdk.requests import GenerateOptions, Messages, Prompt, build_request, conversation
from plait.sdk.results import Completion, Delta, Hop, ModelEntry, ServiceStatus, Waiting
from plait.sdk.resuming import WHOLE_ANSWER, Reach, Resumption
from plait.sdk.settings import DEFAULT_TIMEOUT_S, SHORT_TIMEOUT_S, Metadata, Settings, resolve
from plait.wire.v1 import gateway_pb2, gateway_pb2_grpc

Call = aio.UnaryStreamCall[gateway_pb2.GenerateRequest, gateway_pb2.GenerateEvent]


class AsyncStream:
    """Deltas of an answer as they come, from `AsyncClient.stream`.

    Closing it, or leaving its `async with` block early, cancels the generation on every node.
    After the last delta, `await result()` is the whole answer. A stream that is lost, because the
    coordinator was restarted or the way to it broke, goes on where it was.
    """

    def __init__(
        self,
        open_call: Callable[[gateway_pb2.GenerateRequest, float], Call],
        settings: Settings,
        resumption: Resumption,
    ) -> None:
        self._open_call = open_call
        self._settings = settings
        self._resumption = resumption
        self._call = open_call(resumption.request, resumption.timeout_s)
        self._fold = Fold()
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        """The next delta. Raises what plait.errors lists under UserError and ServiceError."""
        while not self._is_closed:
            try:
                event = await self._call.read()
            except grpc.RpcError as error:
                wait_s = self._resumption.wait_s(error, self._fold)
                if wait_s is None:
                    self._is_closed = True
                    raise self._settings.explain(
                        error, timeout_s=self._resumption.whole_s, what=WHOLE_ANSWER
                    ) from error
                await asyncio.sleep(wait_s)
                if not self._is_closed:
                    request, timeout_s = self._resumption.request, self._resumption.timeout_s
                    self._call = self._open_call(request, timeout_s)
                continue
            if event is aio.EOF:
                self._is_closed = True
                self._fold.result()
                break
            self._resumption.heard()
            delta = self._fold.add(cast("gateway_pb2.GenerateEvent", event))
            if delta is not None:
                return delta
        raise StopAsyncIteration

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._call.cancel()

    @property
    def text(self) -> str:
        """All text so far."""
        return self._fold.text

    @property
    def route(self) -> tuple[Hop, ...]:
        """The chain of nodes that answers; empty while the request waits."""
        return self._fold.route

    @property
    def waiting(self) -> Waiting | None:
        """Where and why the request waits; None while it does not."""
        return self._fold.waiting

    async def result(self) -> Completion:
        """The whole answer. Reads the rest of the stream where it has not ended yet.

        Raises CancelledByClientError after an early `close`.
        """
        async for _ in self:
            pass
        if self._fold.completion is None:
            raise CancelledByClientError("the stream was closed before its end")
        return self._fold.completion


class AsyncClient:
    """A network's client for asyncio. Settings are found as `Client` finds them.

    async with plait.AsyncClient() as client:
        async for delta in client.stream("Once upon a time"):
            print(delta, end="")
    """

    def __init__(
        self,
        address: str | None = None,
        api_key: str | None = None,
        ca: str | Path | bytes | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Nothing is sent yet. Arguments and errors are `Client`'s."""
        self._settings = resolve(address, api_key, ca)
        self._timeout_s = timeout_s
        self._reach = Reach()
        self._channel = aio.secure_channel(
            self._settings.address, self._settings.credentials, options=self._settings.options
        )
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; running streams end."""
        await self._channel.close()

    async def generate(
        self, prompt: str | list[int], **options: Unpack[GenerateOptions]
    ) -> Completion:
        """Continue raw text or token ids, without a chat template. Raises as `Client.generate`."""
        async with self.stream(prompt, **options) as stream:
            return await stream.result()

    async def chat(self, messages: Messages, **options: Unpack[GenerateOptions]) -> Completion:
        """Answer a conversation, laid out by the model's own template."""
        async with self.stream(conversation(messages), **options) as stream:
            return await stream.result()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """The same, delta by delta; the prompt is text, token ids or messages.

        Errors of the request come with the first delta.
        """
        resumption = Resumption(
            build_request(prompt, options),
            timeout_s=options.get("timeout_s") or self._timeout_s,
            reach=self._reach,
        )
        metadata = self._settings.metadata_in(options.get("traceparent"))
        return AsyncStream(partial(self._generate, metadata), self._settings, resumption)

    def _generate(
        self, metadata: Metadata, request: gateway_pb2.GenerateRequest, timeout_s: float
    ) -> Call:
        return self._stub.Generate(request, timeout=timeout_s, metadata=metadata)

    async def models(self) -> list[ModelEntry]:
        """The models that the network serves, in the operator's order."""
        try:
            response = await self._stub.ListModels(
                gateway_pb2.ListModelsRequest(),
                timeout=SHORT_TIMEOUT_S,
                metadata=self._settings.metadata,
            )
        except grpc.RpcError as error:
            raise self._settings.explain(
                error, timeout_s=SHORT_TIMEOUT_S, what="the coordinator's answer"
            ) from error
        return model_entries(list(response.models))

    async def status(self) -> ServiceStatus:
        """Whether the network can serve now, and which layers are missing where it cannot."""
        try:
            response = await self._stub.GetServiceStatus(
                gateway_pb2.GetServiceStatusRequest(),
                timeout=SHORT_TIMEOUT_S,
                metadata=self._settings.metadata,
            )
        except grpc.RpcError as error:
            raise self._settings.explain(
                error, timeout_s=SHORT_TIMEOUT_S, what="the coordinator's answer"
            ) from error
        return service_status(response)
