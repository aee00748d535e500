"""What a client gets back. Times in milliseconds, log probabilities natural."""

import json
from dataclasses import dataclass

from plait.errors import ServiceError
from plait.types import FinishReason, LayerSpan, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One likely token at a place of the answer."""

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """The log probability of a generated token, and of the likeliest ones where asked for."""

    token_id: int
    text: str
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function call of an answer. `arguments` is JSON as text: an object, unless the answer was
    cut short."""

    call_id: str
    name: str
    arguments: str

    def parse(self) -> dict[str, object]:
        """The arguments. Raises ServiceError where they are no JSON object."""
        try:
            content = json.loads(self.arguments)
        except ValueError as error:
            raise ServiceError(f"the call of {self.name} is cut short: {error}") from error
        if not isinstance(content, dict):
            raise ServiceError(f"the arguments of {self.name} are no object")
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of call number `index` of the answer: the first one has `call_id` and `name`, and
    `arguments` is what follows the earlier pieces."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text, or a piece of a function call; `str(delta)` is the text, empty while a character is
    incomplete."""

    text: str
    token_ids: tuple[int, ...] = ()
    scores: tuple[TokenScore, ...] = ()
    tool_call: ToolCallDelta | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One stage of the chain of nodes that answered."""

    node_id: str
    display_name: str
    span: LayerSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The request waits for a chain; `position` counts from 1, `wait_ms` is about how long (None:
    nobody knows)."""

    position: int
    reason: str
    message: str
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer. `str(completion)` is its text.

    `ttft_ms` is the time to the first token and `total_ms` to the last one, both measured by the
    gateway; `num_attempts` is 1 when no chain broke. `cached_tokens` of the prompt were there from
    earlier requests and were not run again. `scores` is empty unless asked for.
    `service_tier` is how the request was served: "default" or "flex". `tool_calls` are functions
    that the model wants called; `finish_reason` is TOOL_CALLS then, unless it was cut short.
    """

    text: str
    finish_reason: FinishReason
    request_id: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float
    total_ms: float
    num_attempts: int
    route: tuple[Hop, ...]
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...]
    service_tier: str = "default"
    tool_calls: tuple[ToolCall, ...] = ()
    cached_tokens: int = 0

    @property
    def message(self) -> dict[str, object]:
        """The answer as a message, to be sent back in front of the next turn."""
        message: dict[str, object] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_s(self) -> float:
        """Decode rate: tokens after the first one by the time they took; 0 for a single one."""
        span_ms = self.total_ms - self.ttft_ms
        return (self.completion_tokens - 1) * 1000 / span_ms if span_ms > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that the network serves. `missing` are layers without a serving node."""

    model: str
    context_tokens_max: int
    is_ready: bool
    missing: tuple[LayerSpan, ...]
    spec: ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """The network, as far as clients may know it."""

    network_id: str
    software_version: str
    models: tuple[ModelEntry, ...]
    num_nodes_serving: int
    num_requests_running: int
    num_requests_queued: int
