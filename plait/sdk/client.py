"""The blocking client."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

import grpc

from plait.errors import CancelledByClientError
from plait.sdk.fold import Fold, model_entries, service_status
from plait.sdk.requests import GenerateOptions, Messages, Prompt, build_request, conversation
from plait.sdk.results import Completion, Delta, Hop, ModelEntry, ServiceStatus, Waiting
from plait.sdk.resuming import WHOLE_ANSWER, Reach, Resumption
from plait.sdk.settings import DEFAULT_TIMEOUT_S, SHORT_TIMEOUT_S, Metadata, Settings, resolve
from plait.wire.v1 import gateway_pb2, gateway_pb2_grpc

if TYPE_CHECKING:
    from grpc import _CallIterator

    OpenCall = Callable[
        [gateway_pb2.GenerateRequest, float], _CallIterator[gateway_pb2.GenerateEvent]
    ]
    """(request, timeout_s) -> a fresh call."""


class Stream:
    """Deltas of an answer as they come, from `Client.stream`.

    Closing it, or leaving its `with` block early, cancels the generation on every node. After the
    last delta, `result` is the whole answer. A stream that is lost, because the coordinator was
    restarted or the way to it broke, goes on where it was.
    """

    def __init__(self, open_call: "OpenCall", settings: Settings, resumption: Resumption) -> None:
        self._open_call = open_call
        self._settings = settings
        self._resumption = resumption
        self._call = open_call(resumption.request, resumption.timeout_s)
        self._fold = Fold()
        self._is_closed = False

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        """The next delta. Raises what plait.errors lists under UserError and ServiceError."""
        while not self._is_closed:
            try:
                for event in self._call:
                    self._resumption.heard()
                    delta = self._fold.add(event)
                    if delta is not None:
                        return delta
                break
            except grpc.RpcError as error:
                wait_s = None if self._is_closed else self._resumption.wait_s(error, self._fold)
                if wait_s is None:
                    self._is_closed = True
                    raise self._settings.explain(
                        error, timeout_s=self._resumption.whole_s, what=WHOLE_ANSWER
                    ) from error
                time.sleep(wait_s)
                self._call = self._open_call(self._resumption.request, self._resumption.timeout_s)
        if self._is_closed:
            raise StopIteration
        self._is_closed = True
        self._fold.result()
        raise StopIteration

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
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

    @property
    def result(self) -> Completion:
        """The whole answer. Reads the rest of the stream where it has not ended yet.

        Raises CancelledByClientError after an early `close`.
        """
        for _ in self:
            pass
        if self._fold.completion is None:
            raise CancelledByClientError("the stream was closed before its end")
        return self._fold.completion


class Client:
    """A network's blocking client; safe to share between threads.

    What is not given comes from PLAIT_ADDRESS, PLAIT_API_KEY and PLAIT_CA, then from the profile
    that `plait coordinator` writes on its own machine.

        with plait.Client() as client:
            print(client.chat([{"role": "user", "content": "Why is the sky blue?"}]))
    """

    def __init__(
        self,
        address: str | None = None,
        api_key: str | None = None,
        ca: str | Path | bytes | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Nothing is sent yet.

        Args:
            address: host:port of the coordinator's public gRPC port.
            api_key: a client key of the network.
            ca: the network's CA certificate: PEM, or the path of a PEM file.
            timeout_s: longest wait for a whole answer.

        Raises:
            ConfigError: something is missing or unreadable.
        """
        self._settings = resolve(address, api_key, ca)
        self._timeout_s = timeout_s
        self._reach = Reach()
        self._channel = grpc.secure_channel(
            self._settings.address, self._settings.credentials, options=self._settings.options
        )
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; running streams end."""
        self._channel.close()

    def generate(self, prompt: str | list[int], **options: Unpack[GenerateOptions]) -> Completion:
        """Continue raw text or token ids, without a chat template. See GenerateOptions.

        Raises the errors of plait.errors: InvalidRequestError names the parameter, ModelError the
        served models, UnavailableError the missing layers; `is_retryable` says whether to retry.
        """
        return self.stream(prompt, **options).result

    def chat(self, messages: Messages, **options: Unpack[GenerateOptions]) -> Completion:
        """Answer a conversation, laid out by the model's own template. Raises as `generate`."""
        return self.stream(conversation(messages), **options).result

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Stream:
        """The same, delta by delta; the prompt is text, token ids or messages.

        Errors of the request come with the first delta.
        """
        resumption = Resumption(
            build_request(prompt, options),
            timeout_s=options.get("timeout_s") or self._timeout_s,
            reach=self._reach,
        )
        metadata = self._settings.metadata_in(options.get("traceparent"))
        return Stream(partial(self._generate, metadata), self._settings, resumption)

    def _generate(
        self, metadata: Metadata, request: gateway_pb2.GenerateRequest, timeout_s: float
    ) -> "_CallIterator[gateway_pb2.GenerateEvent]":
        return self._stub.Generate(request, timeout=timeout_s, metadata=metadata)

    def models(self) -> list[ModelEntry]:
        """The models that the network serves, in the operator's order."""
        try:
            response = self._stub.ListModels(
                gateway_pb2.ListModelsRequest(),
                timeout=SHORT_TIMEOUT_S,
                metadata=self._settings.metadata,
            )
        except grpc.RpcError as error:
            raise self._settings.explain(
                error, timeout_s=SHORT_TIMEOUT_S, what="the coordinator's answer"
            ) from error
        return model_entries(list(response.models))

    def status(self) -> ServiceStatus:
        """Whether the network can serve now, and which layers are missing where it cannot."""
        try:
            response = self._stub.GetServiceStatus(
                gateway_pb2.GetServiceStatusRequest(),
                timeout=SHORT_TIMEOUT_S,
                metadata=self._settings.metadata,
            )
        except grpc.RpcError as error:
            raise self._settings.explain(
                error, timeout_s=SHORT_TIMEOUT_S, what="the coordinator's answer"
            ) from error
        return service_status(response)
