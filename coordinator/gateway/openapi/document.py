"""The document itself."""

from typing import Final

from coordinator.gateway.apis import MESSAGES_PATH
from coordinator.gateway.openapi.anthropic import COUNT, MESSAGES, TURN
from coordinator.gateway.openapi.openai import (
    CHAT,
    COMPLETION,
    INPUT_ITEM,
    MESSAGE,
    RESPONSE,
    RESPONSE_FORMAT,
)
from coordinator.gateway.openapi.parts import ANY_OBJECT, TEXT, Schema, array, ref, word

PATH: Final = "/openapi.json"

BODIES: Final[dict[str, tuple[str, Schema, str]]] = {
    "/v1/chat/completions": ("ChatRequest", CHAT, "A chat, OpenAI's way."),
    "/v1/completions": ("CompletionRequest", COMPLETION, "Text that goes on, OpenAI's way."),
    "/v1/responses": ("ResponseRequest", RESPONSE, "A chat, the way of OpenAI's responses."),
    MESSAGES_PATH: ("MessagesRequest", MESSAGES, "A chat, Anthropic's way."),
    f"{MESSAGES_PATH}/count_tokens": ("CountRequest", COUNT, "What a prompt comes to."),
}
"""Path: name of its body's schema, the schema, a summary."""

_ERRORS: Final = {
    "400": "A parameter or the body is wrong; `code` and `param` say what and where.",
    "401": "No key, or a wrong, revoked or expired one.",
    "404": "A model that is not served, or not to this key.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "429": "The network is full, or the key has used its minute; see Retry-After.",
    "500": "plait failed; its log says why.",
    "503": "Layers without a node, or no answer in time; see Retry-After.",
}


def document(version: str) -> dict[str, object]:
    """OpenAPI 3.1, as JSON has it. `version` is plait's own."""
    schemas: dict[str, object] = {
        "Message": MESSAGE,
        "ResponseFormat": RESPONSE_FORMAT,
        "InputItem": INPUT_ITEM,
        "Turn": TURN,
        **{name: schema for name, schema, _ in BODIES.values()},
    }
    paths: dict[str, object] = {
        path: {"post": _posted(name, summary)} for path, (name, _, summary) in BODIES.items()
    }
    for path, summary in (
        ("/v1/models", "The models that the key may ask."),
        ("/v1/models/{model_id}", "One of them."),
    ):
        paths[path] = {"get": _got(path, summary)}
    for path, summary in (
        ("/health", "Whether the process answers."),
        ("/ready", "Whether a model can be served, and what is missing."),
    ):
        statuses = {"200": _answer("It does."), "503": _answer("It does not.")}
        paths[path] = {"get": {"summary": summary, "security": [], "responses": statuses}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "plait",
            "version": version,
            "description": "Every field is honoured or refused by name; none is ignored. Fields "
            "that are absent and fields that are null mean the same.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _posted(name: str, summary: str) -> dict[str, object]:
    body = {"required": True, "content": {"application/json": {"schema": ref(name)}}}
    streams = {"schema": {**TEXT, "description": "Server-sent events, where `stream` is true."}}
    answer: Schema = {
        "description": "The answer.",
        "content": {"application/json": {"schema": ANY_OBJECT}, "text/event-stream": streams},
    }
    return {"summary": summary, "requestBody": body, "responses": {"200": answer, **_failures()}}


def _got(path: str, summary: str) -> dict[str, object]:
    asked: dict[str, object] = {"summary": summary}
    if "{" in path:
        named = {"name": "model_id", "in": "path", "required": True, "schema": TEXT}
        asked["parameters"] = [named]
        model: Schema = {"type": "object", "properties": {"id": TEXT, "object": word("model")}}
    else:
        entry: Schema = {"type": "object", "properties": {"id": TEXT}}
        model = {"type": "object", "properties": {"data": array(entry)}}
    answer = {"description": "Known.", "content": {"application/json": {"schema": model}}}
    return {**asked, "responses": {"200": answer, **_failures()}}


def _answer(description: str) -> dict[str, object]:
    return {
        "description": description,
        "content": {"application/json": {"schema": ANY_OBJECT}},
    }


def _failures() -> dict[str, object]:
    return {status: _answer(description) for status, description in _ERRORS.items()}
