"""What a machine would meet as a node, looked at before it enrols: `plait node doctor` asks.

Nothing is spent or changed. Whoever asks shows a token that would let it in, or the identity of a
node that is in; and only the address that the call came from is dialled back.
"""

import asyncio
import importlib.metadata
from collections.abc import Sequence
from typing import Final

from grpc import aio

from coordinator.core.view import ModelView, NetworkView
from coordinator.ports import ViewSource
from coordinator.shell.store_nodes import EnrolledNodes
from coordinator.shell.store_tokens import EnrolmentTokens
from plait.clock import Clock
from plait.crypto.identity import check_identity_signature, preflight_message
from plait.errors import InvalidRequestError
from plait.types import ModelSpec, NodeId
from plait.wire import codec
from plait.wire.v1 import common_pb2, control_pb2

DIAL_S: Final = 3.0
SAID_BYTES_MAX: Final = 64
DIALS_MAX: Final = 8
PADDING_BYTES_MAX: Final = 512 << 10

Context = aio.ServicerContext[control_pb2.PreflightRequest, control_pb2.PreflightResponse]


class Preflight:
    """Answers preflights; at most DIALS_MAX dials back are under way at once."""

    def __init__(
        self,
        *,
        tokens: EnrolmentTokens,
        nodes: EnrolledNodes,
        specs: Sequence[ModelSpec],
        views: ViewSource | None,
        clock: Clock,
    ) -> None:
        self._tokens = tokens
        self._nodes = nodes
        self._specs = specs
        self._views = views
        self._clock = clock
        self._dials = asyncio.Semaphore(DIALS_MAX)

    async def answer(
        self, request: control_pb2.PreflightRequest, host: str
    ) -> control_pb2.PreflightResponse:
        """`host` is where the call came from.

        Raises AuthenticationError (token_unknown, token_used, token_expired, token_revoked,
        node_unknown, node_banned, bad_proof) and InvalidRequestError.
        """
        if len(request.padding) > PADDING_BYTES_MAX or request.response_bytes > PADDING_BYTES_MAX:
            raise InvalidRequestError(
                f"padding is at most {PADDING_BYTES_MAX} bytes", param="padding"
            )
        await self._check_right(request)
        said, problem = b"", ""
        if request.dial_back_port:
            said, problem = await self._dial_back(host, request.dial_back_port)
        return control_pb2.PreflightResponse(
            now_unix_ms=self._clock.unix_ms(),
            seen_host=host,
            dial_back_said=said,
            dial_back_error=problem,
            models=self._needs(),
            padding=bytes(request.response_bytes),
            software_version=importlib.metadata.version("plait"),
        )

    async def _check_right(self, request: control_pb2.PreflightRequest) -> None:
        """A token that would let a node in, or a node that is in. A clock that is wrong is no
        reason to refuse: it is what may have to be found out."""
        if request.token_id or request.token_secret:
            await self._tokens.check(request.token_id, request.token_secret)
            return
        node_id: NodeId = check_identity_signature(
            identity_key=request.identity_key,
            message=preflight_message(request.sent_unix_ms),
            signature=request.identity_signature,
        )
        await self._nodes.require(node_id)

    async def _dial_back(self, host: str, port: int) -> tuple[bytes, str]:
        """What the port says first, or why it cannot be reached."""
        if port > 65_535:
            raise InvalidRequestError(f"{port} is no port", param="dial_back_port")
        try:
            async with self._dials, asyncio.timeout(DIAL_S):
                reader, writer = await asyncio.open_connection(host.strip("[]"), port)
                try:
                    return await reader.read(SAID_BYTES_MAX), ""
                finally:
                    writer.transport.abort()
        except TimeoutError:
            return b"", f"no answer within {DIAL_S:g} s"
        except OSError as error:
            return b"", (error.strerror or "it cannot be reached").lower()

    def _needs(self) -> list[control_pb2.ModelNeed]:
        view = self._views.view() if self._views is not None else None
        return [_need(spec, _model(view, spec)) for spec in self._specs]


def _model(view: NetworkView | None, spec: ModelSpec) -> ModelView | None:
    if view is None:
        return None
    return next((m for m in view.models if m.model_id == spec.model_id), None)


def _need(spec: ModelSpec, model: ModelView | None) -> control_pb2.ModelNeed:
    """Missing layers come first; where there are none, the ones with the fewest copies."""
    missing = model.missing if model is not None else ((0, spec.num_layers),)
    copies = model.replicas_per_layer if model is not None else ()
    thinnest = copies.index(min(copies)) if copies else 0
    return control_pb2.ModelNeed(
        spec=codec.model_spec_to_proto(spec),
        missing=[common_pb2.LayerSpan(start=start, end=end) for start, end in missing],
        first_layer=missing[0][0] if missing else thinnest,
    )
