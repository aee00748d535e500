"""The operator's door: what the network looks like, who may join, who may ask."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final, NoReturn, TypeVar

import grpc
from grpc import aio

from coordinator.core.events import NodeDrainAsked, ReplanAsked
from coordinator.ports import ApiKey, EnrolmentToken, Inbox, KeyStore, TokenStore, ViewSource
from coordinator.shell.key_limits import limits_of, message_of
from coordinator.shell.store_nodes import EnrolledNodes
from coordinator.shell.store_routes import RequestRoutes
from coordinator.view_json import request_to_json
from plait.errors import AuthenticationError, InvalidRequestError, PlaitError
from plait.log import get
from plait.types import NodeId
from plait.wire.status import REASON_KEY, abort_with
from plait.wire.v1 import admin_pb2 as pb
from plait.wire.v1 import admin_pb2_grpc

DRAIN_LIMIT_MS: Final = 10_000
BANNED_LIMIT_MS: Final = 1
"""What runs on a banned node is not waited for; it goes on elsewhere."""

DRAIN_LIMIT_MS_MAX: Final = 3_600_000
_log = get("admin")
_Response = TypeVar("_Response")
_Context = aio.ServicerContext[object, object]


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Every call wants an operator's key. `public_address` is what volunteers dial."""

    def __init__(
        self,
        *,
        views: ViewSource,
        keys: KeyStore,
        tokens: TokenStore,
        nodes: EnrolledNodes,
        routes: RequestRoutes,
        inbox: Inbox,
        public_address: str,
    ) -> None:
        self._views = views
        self._keys = keys
        self._tokens = tokens
        self._nodes = nodes
        self._routes = routes
        self._inbox = inbox
        self._public_address = public_address

    async def GetNetwork(  # noqa: N802
        self, request: pb.GetNetworkRequest, context: _Context
    ) -> pb.GetNetworkResponse:
        async def answer(_: ApiKey) -> pb.GetNetworkResponse:
            return pb.GetNetworkResponse(view_json=json.dumps(asdict(self._views.view())))

        return await self._as_operator(context, answer)

    async def GetRequest(  # noqa: N802
        self, request: pb.GetRequestRequest, context: _Context
    ) -> pb.GetRequestResponse:
        async def answer(_: ApiKey) -> pb.GetRequestResponse:
            kept = await self._routes.find(request.request_id)
            if kept is None:
                raise InvalidRequestError(
                    f"no request {request.request_id!r} among those that are open and the last "
                    "that ended, or several that begin so: answers and `plait status` name them",
                    param="request_id",
                    reason="not_found",
                )
            return pb.GetRequestResponse(
                request_json=request_to_json(kept.request), display_names=dict(kept.names)
            )

        return await self._as_operator(context, answer)

    async def CreateEnrolmentToken(  # noqa: N802
        self, request: pb.CreateEnrolmentTokenRequest, context: _Context
    ) -> pb.CreateEnrolmentTokenResponse:
        async def answer(operator: ApiKey) -> pb.CreateEnrolmentTokenResponse:
            token, entry = await self._tokens.create_token(
                display_name=request.display_name, valid_s=request.valid_s
            )
            _log.info("token_created", token_id=entry.token_id, by=operator.key_id)
            return pb.CreateEnrolmentTokenResponse(
                token=token,
                token_id=entry.token_id,
                expires_unix_ms=entry.expires_unix_ms,
                join_command=f"plait node join {self._public_address} --token {token}",
            )

        return await self._as_operator(context, answer)

    async def ListEnrolmentTokens(  # noqa: N802
        self, request: pb.ListEnrolmentTokensRequest, context: _Context
    ) -> pb.ListEnrolmentTokensResponse:
        async def answer(_: ApiKey) -> pb.ListEnrolmentTokensResponse:
            entries = await self._tokens.list_tokens()
            return pb.ListEnrolmentTokensResponse(tokens=[_token_entry(e) for e in entries])

        return await self._as_operator(context, answer)

    async def RevokeEnrolmentToken(  # noqa: N802
        self, request: pb.RevokeEnrolmentTokenRequest, context: _Context
    ) -> pb.RevokeEnrolmentTokenResponse:
        async def answer(operator: ApiKey) -> pb.RevokeEnrolmentTokenResponse:
            await self._tokens.revoke_token(request.token_id)
            _log.info("token_revoked", token_id=request.token_id, by=operator.key_id)
            return pb.RevokeEnrolmentTokenResponse()

        return await self._as_operator(context, answer)

    async def CreateApiKey(  # noqa: N802
        self, request: pb.CreateApiKeyRequest, context: _Context
    ) -> pb.CreateApiKeyResponse:
        async def answer(operator: ApiKey) -> pb.CreateApiKeyResponse:
            secret, entry = await self._keys.create_key(
                display_name=request.display_name,
                is_admin=request.is_admin,
                weight=request.weight or 1.0,
                limits=limits_of(request.limits),
            )
            _log.info("key_created", key_id=entry.key_id, by=operator.key_id)
            return pb.CreateApiKeyResponse(key=secret, key_id=entry.key_id)

        return await self._as_operator(context, answer)

    async def ListApiKeys(  # noqa: N802
        self, request: pb.ListApiKeysRequest, context: _Context
    ) -> pb.ListApiKeysResponse:
        async def answer(_: ApiKey) -> pb.ListApiKeysResponse:
            return pb.ListApiKeysResponse(
                keys=[_key_entry(entry) for entry in await self._keys.list_keys()]
            )

        return await self._as_operator(context, answer)

    async def RevokeApiKey(  # noqa: N802
        self, request: pb.RevokeApiKeyRequest, context: _Context
    ) -> pb.RevokeApiKeyResponse:
        async def answer(operator: ApiKey) -> pb.RevokeApiKeyResponse:
            if request.key_id == operator.key_id:
                raise InvalidRequestError(
                    "a key cannot revoke itself: use another operator's key", param="key_id"
                )
            await self._keys.revoke_key(request.key_id)
            _log.info("key_revoked", key_id=request.key_id, by=operator.key_id)
            return pb.RevokeApiKeyResponse()

        return await self._as_operator(context, answer)

    async def WeighApiKey(  # noqa: N802
        self, request: pb.WeighApiKeyRequest, context: _Context
    ) -> pb.WeighApiKeyResponse:
        async def answer(operator: ApiKey) -> pb.WeighApiKeyResponse:
            await self._keys.weigh_key(request.key_id, request.weight)
            _log.info(
                "key_weighed",
                key_id=request.key_id,
                weight=request.weight,
                by=operator.key_id,
            )
            return pb.WeighApiKeyResponse()

        return await self._as_operator(context, answer)

    async def LimitApiKey(  # noqa: N802
        self, request: pb.LimitApiKeyRequest, context: _Context
    ) -> pb.LimitApiKeyResponse:
        async def answer(operator: ApiKey) -> pb.LimitApiKeyResponse:
            await self._keys.limit_key(request.key_id, limits_of(request.limits))
            _log.info("key_limited", key_id=request.key_id, by=operator.key_id)
            return pb.LimitApiKeyResponse()

        return await self._as_operator(context, answer)

    async def DrainNode(  # noqa: N802
        self, request: pb.DrainNodeRequest, context: _Context
    ) -> pb.DrainNodeResponse:
        async def answer(operator: ApiKey) -> pb.DrainNodeResponse:
            if request.limit_ms > DRAIN_LIMIT_MS_MAX:
                raise InvalidRequestError(
                    f"a drain takes at most {DRAIN_LIMIT_MS_MAX} ms", param="limit_ms"
                )
            if all(node.node_id != request.node_id for node in self._views.view().nodes):
                raise InvalidRequestError(
                    f"no node {request.node_id!r} is attached: `plait status` lists them",
                    param="node_id",
                    reason="not_found",
                )
            self._inbox.post(
                NodeDrainAsked(
                    node_id=NodeId(request.node_id),
                    incarnation=None,
                    reason="the operator asked for it",
                    limit_ms=request.limit_ms or DRAIN_LIMIT_MS,
                )
            )
            _log.info("drain_asked", node_id=request.node_id, by=operator.key_id)
            return pb.DrainNodeResponse()

        return await self._as_operator(context, answer)

    async def BanNode(  # noqa: N802
        self, request: pb.BanNodeRequest, context: _Context
    ) -> pb.BanNodeResponse:
        async def answer(operator: ApiKey) -> pb.BanNodeResponse:
            node_id, is_banned = NodeId(request.node_id), not request.is_lifted
            await self._nodes.ban(node_id, is_banned=is_banned)
            _log.info("node_banned", node_id=node_id, is_banned=is_banned, by=operator.key_id)
            if is_banned and any(n.node_id == node_id for n in self._views.view().nodes):
                self._inbox.post(
                    NodeDrainAsked(
                        node_id=node_id,
                        incarnation=None,
                        reason="the operator banned it",
                        limit_ms=BANNED_LIMIT_MS,
                    )
                )
            return pb.BanNodeResponse()

        return await self._as_operator(context, answer)

    async def Replan(  # noqa: N802
        self, request: pb.ReplanRequest, context: _Context
    ) -> pb.ReplanResponse:
        async def answer(operator: ApiKey) -> pb.ReplanResponse:
            plan = self._views.view().plan
            self._inbox.post(ReplanAsked())
            _log.info("replan_asked", by=operator.key_id)
            return pb.ReplanResponse(allocation_epoch=(plan.epoch if plan else 0) + 1)

        return await self._as_operator(context, answer)

    async def _as_operator(
        self, context: _Context, answer: Callable[[ApiKey], Awaitable[_Response]]
    ) -> _Response:
        """What `answer` gives, once the caller has shown an operator's key."""
        try:
            key = await self._keys.verify_key(bearer_key(context))
        except PlaitError as error:
            _log.info("operator_refused", reason=error.code)
            await abort_with(context, error)
        if not key.is_admin:
            _log.info("operator_refused", reason="not_admin", key_id=key.key_id)
            await _deny(context)
        try:
            return await answer(key)
        except PlaitError as error:
            await abort_with(context, error)


def bearer_key(context: _Context) -> str:
    """The key in the call's metadata. Raises AuthenticationError where there is none."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, key = value.partition(" ")
            if scheme.lower() == "bearer" and key.strip():
                return key.strip()
    raise AuthenticationError("give an API key as `authorization: Bearer sk-plait-...`")


async def _deny(context: _Context) -> NoReturn:
    await context.abort(
        grpc.StatusCode.PERMISSION_DENIED,
        "this key may ask the model but not run the network: use an operator's key "
        "(`plait token key create --admin`)",
        trailing_metadata=((REASON_KEY, "not_admin"),),
    )
    raise AssertionError("unreachable: abort raises")


def _token_entry(entry: EnrolmentToken) -> pb.EnrolmentTokenEntry:
    return pb.EnrolmentTokenEntry(
        token_id=entry.token_id,
        display_name=entry.display_name,
        state=entry.state,
        expires_unix_ms=entry.expires_unix_ms,
        node_id=entry.node_id or "",
    )


def _key_entry(entry: ApiKey) -> pb.ApiKeyEntry:
    return pb.ApiKeyEntry(
        key_id=entry.key_id,
        display_name=entry.display_name,
        is_admin=entry.is_admin,
        is_revoked=entry.is_revoked,
        created_unix_ms=entry.created_unix_ms,
        weight=entry.weight,
        limits=message_of(entry.limits),
    )
