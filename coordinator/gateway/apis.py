"""The APIs that the HTTP door speaks: where each is, how it reads a request, how it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.gateway.anthropic_schema import read_message_order
from coordinator.gateway.anthropic_shapes import AnthropicDialect, anthropic_error
from coordinator.gateway.dialect import MakeDialect
from coordinator.gateway.http_errors import MakeError, error_object
from coordinator.gateway.openai_shapes import OpenAiDialect
from coordinator.gateway.responses_schema import read_response_order
from coordinator.gateway.responses_shapes import ResponsesDialect
from coordinator.gateway.schema import CompletionOrder, read_chat, read_completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One of them. `id_prefix` begins its responses' ids. Where `is_resumable`, events have ids
    and a stream that broke goes on behind the last one that came."""

    path: str
    id_prefix: str
    read: Callable[[Mapping[str, object]], CompletionOrder]
    make_dialect: MakeDialect
    make_error: MakeError = error_object
    is_resumable: bool = False


MESSAGES_PATH: Final = "/v1/messages"

APIS: Final = (
    Api(
        path="/v1/chat/completions",
        id_prefix="chatcmpl-",
        read=read_chat,
        make_dialect=OpenAiDialect,
        is_resumable=True,
    ),
    Api(
        path="/v1/completions",
        id_prefix="cmpl-",
        read=read_completion,
        make_dialect=OpenAiDialect,
        is_resumable=True,
    ),
    Api(
        path="/v1/responses",
        id_prefix="resp_",
        read=read_response_order,
        make_dialect=ResponsesDialect,
    ),
    Api(
        path=MESSAGES_PATH,
        id_prefix="msg_",
        read=read_message_order,
        make_dialect=AnthropicDialect,
        make_error=anthropic_error,
    ),
)


def error_of(path: str) -> MakeError:
    """How whatever serves `path` writes errors."""
    return anthropic_error if path.startswith(MESSAGES_PATH) else error_object
