"""The HTTP door: OpenAI's and Anthropic's APIs, health and readiness."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from coordinator.gateway.anthropic_schema import read_count_order
from coordinator.gateway.apis import APIS, MESSAGES_PATH, Api, error_of
from coordinator.gateway.auth import Authenticator
from coordinator.gateway.catalogue import Catalogue
from coordinator.gateway.chat_page import chat_router
from coordinator.gateway.completions import CompletionResponse
from coordinator.gateway.event_ids import named
from coordinator.gateway.fields import parse_object
from coordinator.gateway.generate import Generator
from coordinator.gateway.http_errors import error_response, json_response
from coordinator.gateway.limits import DoorLimits, Turnstile
from coordinator.gateway.openapi.document import PATH as OPENAPI_PATH
from coordinator.gateway.openapi.document import document
from coordinator.gateway.quotas import may_use
from coordinator.gateway.schema import CompletionOrder
from coordinator.ports import ApiKey, ViewSource
from plait.clock import Clock
from plait.errors import InvalidRequestError, PlaitError, ServiceError
from plait.log import get
from plait.types import ModelSpec
from plait.wire.trace_context import TRACEPARENT, TRACESTATE, read_trace_parent

OWNER: Final = "plait"
UNOFFERED: Final = frozenset(
    {
        *("assistants", "audio", "batches", "containers", "conversations", "embeddings", "evals"),
        *("files", "fine_tuning", "images", "moderations", "realtime", "threads", "uploads"),
        *("vector_stores", "videos"),
    }
)
"""Published endpoints under /v1 that people may look for here."""

log = get("http")


class HttpDoor:
    """What the routes need; `app()` makes the ASGI application."""

    def __init__(
        self,
        *,
        generator: Generator,
        catalogue: Catalogue,
        authenticator: Authenticator,
        turnstile: Turnstile,
        views: ViewSource,
        limits: DoorLimits,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._generator = generator
        self._catalogue = catalogue
        self._authenticator = authenticator
        self._turnstile = turnstile
        self._views = views
        self._limits = limits
        self._clock = clock
        self._new_id = new_id
        self._created_s = clock.unix_ms() // 1000

    def app(self) -> FastAPI:
        """A fresh application with all routes; a dashboard may be mounted on it."""
        app = FastAPI(title="plait", docs_url=None, redoc_url=None, openapi_url=None)
        add = app.add_api_route
        for api in APIS:
            add(api.path, self._route_of(api), methods=["POST"])
        add(f"{MESSAGES_PATH}/count_tokens", self.count_tokens, methods=["POST"])
        add("/v1/models", self.models, methods=["GET"])
        add("/v1/models/{model_id:path}", self.model, methods=["GET"])
        app.include_router(chat_router())
        add(OPENAPI_PATH, self.openapi, methods=["GET"])
        add("/health", self.health, methods=["GET"])
        add("/ready", self.ready, methods=["GET"])
        app.add_exception_handler(PlaitError, _on_plait_error)
        app.add_exception_handler(HTTPException, _on_http_error)
        app.add_exception_handler(Exception, _on_bug)
        return app

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens: what a prompt comes to, Anthropic's way."""
        await self._authenticate(request)
        order = read_count_order(parse_object(await self._body(request)))
        self._catalogue.find(order.model_id)
        return json_response({"input_tokens": len(await self._generator.encode(order))})

    def _route_of(self, api: Api) -> Callable[[Request], Awaitable[Response]]:
        async def complete(request: Request) -> Response:
            return await self._complete(request, api)

        return complete

    async def _complete(self, request: Request, api: Api) -> Response:
        key = await self._authenticate(request)
        order = api.read(parse_object(await self._body(request)))
        self._catalogue.find(order.model_id)
        order = _traced(order, request)
        name = self._new_id()
        if api.is_resumable:
            order, name = named(order, request.headers.get("last-event-id"), name)
        return CompletionResponse(
            order=order,
            make_dialect=api.make_dialect,
            make_error=api.make_error,
            key=key,
            address=request.client.host if request.client is not None else "unknown",
            generator=self._generator,
            turnstile=self._turnstile,
            limits=self._limits,
            clock=self._clock,
            response_id=api.id_prefix + name,
        )

    async def models(self, request: Request) -> Response:
        """GET /v1/models: those that the key may ask."""
        key = await self._authenticate(request)
        entries = [
            self._model_entry(spec)
            for spec in self._catalogue.specs.values()
            if may_use(key.limits, spec.model_id)
        ]
        return json_response({"object": "list", "data": entries})

    async def model(self, request: Request, model_id: str) -> Response:
        """GET /v1/models/{id}."""
        await self._authenticate(request)
        return json_response(self._model_entry(self._catalogue.find(model_id)))

    async def openapi(self) -> Response:
        """GET /openapi.json: the doors as an OpenAPI document; no key."""
        return json_response(document(self._views.view().software_version))

    async def health(self) -> Response:
        """GET /health: the process answers."""
        return json_response({"status": "ok"})

    async def ready(self) -> Response:
        """GET /ready: 200 when a model can be served, else 503 and the layers that are missing."""
        view = self._views.view()
        is_ready = any(model.is_ready for model in view.models)
        content = {
            "status": "ready" if is_ready else "not_ready",
            "models": [
                {
                    "id": model.model_id,
                    "ready": model.is_ready,
                    "missing_layers": [list(span) for span in model.missing],
                    "advice": model.advice,
                }
                for model in view.models
            ],
        }
        return json_response(content, 200 if is_ready else 503)

    async def _authenticate(self, request: Request) -> ApiKey:
        authorization = request.headers.get("authorization")
        if authorization is None and (secret := request.headers.get("x-api-key")):
            authorization = f"Bearer {secret}"  # Anthropic's clients name it so
        return await self._authenticator.check(authorization)

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.body_bytes_max
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise InvalidRequestError(
                            f"the body is larger than {limit} bytes", reason="body_too_large"
                        )
                    parts.append(part)
        except TimeoutError:
            raise InvalidRequestError(
                f"the body did not come within {self._limits.body_s:g} s", reason="body_timeout"
            ) from None
        except ClientDisconnect:  # nobody reads the answer
            raise InvalidRequestError("the body was cut off", reason="body_cut") from None
        return b"".join(parts)

    def _model_entry(self, spec: ModelSpec) -> dict[str, object]:
        return {
            "id": spec.model_id,
            "object": "model",
            "created": self._created_s,
            "owned_by": OWNER,
        }


def _traced(order: CompletionOrder, request: Request) -> CompletionOrder:
    headers = request.headers
    trace = read_trace_parent(headers.get(TRACEPARENT), headers.get(TRACESTATE))
    if trace is None:
        return order
    return replace(order, orders=tuple(replace(each, trace=trace) for each in order.orders))


async def _on_plait_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PlaitError)
    return error_response(error, error_of(request.url.path))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    parts = request.url.path.split("/")
    if error.status_code == 404 and parts[1] == "v1" and parts[2:] and parts[2] in UNOFFERED:
        problem = InvalidRequestError(
            f"{request.url.path}: plait generates text and offers no {parts[2].replace('_', ' ')}; "
            f"what it offers is in {OPENAPI_PATH}",
            reason="not_offered",
        )
    else:
        problem = InvalidRequestError(
            f"{request.method} {request.url.path}: {error.detail}",
            reason="not_found" if error.status_code == 404 else "invalid_request",
        )
    response = error_response(problem, error_of(request.url.path))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("bug", path=request.url.path, kind=type(error).__name__)
    failure = ServiceError("plait failed on this request; its log says why")
    return error_response(failure, error_of(request.url.path))
