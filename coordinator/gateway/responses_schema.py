"""The request body of OpenAI's /v1/responses, and what plait makes of it.

Nothing is kept between requests: `store` is false, and each request brings its whole conversation.
Every field of the published schema is either read here or listed as refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from coordinator.gateway import fields
from coordinator.gateway.conversation import Call, ToolFunction, ToolMode, ToolUse, Turn
from coordinator.gateway.fields import Fields
from coordinator.gateway.messages import bounded_items, spoken
from coordinator.gateway.order import Conversation, Order, check_order, check_text
from coordinator.gateway.response_format import read_name, read_response_format, read_schema
from coordinator.gateway.schema import TIERS, CompletionOrder
from coordinator.gateway.tool_fields import (
    checked_call,
    read_call_id,
    read_mode,
    require_function,
    tool_use,
)
from plait.errors import InvalidRequestError
from plait.types import Constraint, SamplingParams

REFUSED: Final = frozenset(
    {
        "access_programs",
        "background_options",
        "context_management",
        "conversation",
        "image",
        "max_tool_calls",
        "moderation",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "stream_options",
    }
)
"""Published fields that plait does not honour; null passes."""

LOGPROBS: Final = "message.output_text.logprobs"
TOP_LOGPROBS_MAX: Final = 20
METADATA_MAX: Final = 16
METADATA_KEY_CHARS_MAX: Final = 64
METADATA_CHARS_MAX: Final = 512
_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_ITEM_KINDS: Final = ("message", "function_call", "function_call_output")
_ECHOED: Final = (
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature"),
    *("text", "tool_choice", "tools", "top_logprobs", "top_p", "user"),
)


def read_response_order(content: Mapping[str, object]) -> CompletionOrder:
    """The body of /v1/responses. Raises InvalidRequestError naming the parameter."""
    reader = Fields(content)
    instructions = reader.take("instructions", spoken, "")
    turns = reader.require("input", _read_input)
    if instructions:
        turns = (Turn("system", instructions), *turns)
    top_logprobs = _read_logprobs(reader)
    order = Order(
        prompt=Conversation(turns, _read_tool_use(reader)),
        model_id=reader.require("model", fields.text),
        max_tokens=reader.take("max_output_tokens", fields.integer_between(1, (1 << 31) - 1), None),
        sampling=SamplingParams(
            temperature=reader.take("temperature", fields.number, 1.0),
            top_p=reader.take("top_p", fields.number, 1.0),
            top_logprobs=top_logprobs,
            constraint=reader.take("text", _read_text_options, None),
        ),
        slo=TIERS[reader.take("service_tier", fields.one_of(*TIERS), "default")],
    )
    user = reader.take("user", fields.text, None)
    if user is not None:
        check_text(user, "user")
    is_stream = reader.take("stream", fields.flag, default=False)
    for name in ("store", "background"):
        reader.take(name, _read_false, None)
    reader.take("truncation", fields.one_of("disabled"), None)
    reader.take("metadata", _read_metadata, None)
    reader.refuse_rest(REFUSED)
    check_order(order)
    return CompletionOrder(
        orders=(order,),
        model_id=order.model_id,
        is_chat=True,
        is_stream=is_stream,
        includes_usage=True,
        top_logprobs=top_logprobs,
        user=user,
        echo={name: content[name] for name in _ECHOED if content.get(name) is not None},
    )


def _read_input(name: str, value: object) -> tuple[Turn, ...]:
    if isinstance(value, str):
        return (Turn("user", spoken(name, value)),)
    items = bounded_items(name, value)
    turns: list[Turn] = []
    for at, item in enumerate(items):
        turn = _read_item(f"{name}[{at}]", item)
        before = turns[-1] if turns else None
        if turn.calls and before is not None and before.role == "assistant":
            # What a model said in one turn comes as several items.
            turns[-1] = Turn("assistant", before.content, calls=(*before.calls, *turn.calls))
        else:
            turns.append(turn)
    return tuple(turns)


def _read_item(name: str, value: object) -> Turn:
    reader = Fields(fields.json_object(name, value), name)
    kind = reader.take("type", fields.one_of(*_ITEM_KINDS), "message")
    reader.take("id", fields.text, None)
    reader.take("status", fields.text, None)
    match kind:
        case "message":
            return _read_message(name, reader)
        case "function_call":
            call = Call(
                reader.require("call_id", read_call_id),
                reader.require("name", fields.text),
                reader.require("arguments", fields.text),
            )
            reader.refuse_rest(frozenset({"namespace", "caller"}))
            return Turn("assistant", "", calls=(checked_call(name, call),))
        case _:
            call_id = reader.require("call_id", read_call_id)
            said = reader.require("output", _parts_of("user"))
            reader.refuse_rest(frozenset({"caller"}))
            return Turn("tool", said, call_id=call_id)


def _read_message(name: str, reader: Fields) -> Turn:
    role = reader.require("role", fields.text)
    if role not in _ROLES:
        raise InvalidRequestError(
            f"{name}.role {role[:40]!r} is not supported: plait knows {', '.join(_ROLES)}",
            param=f"{name}.role",
        )
    said = reader.require("content", _parts_of(role))
    reader.refuse_rest(frozenset({"phase"}))
    return Turn(_ROLES[role], said)


def _parts_of(role: str) -> Callable[[str, object], str]:
    """A reader of a string, or of an array of the text parts that the role may have."""
    kinds = ("output_text", "input_text") if role == "assistant" else ("input_text",)

    def read(name: str, value: object) -> str:
        if isinstance(value, str):
            return spoken(name, value)
        items = fields.array(name, value)
        return "".join(_read_part(f"{name}[{at}]", item, kinds) for at, item in enumerate(items))

    return read


def _read_part(name: str, value: object, kinds: Sequence[str]) -> str:
    reader = Fields(fields.json_object(name, value), name)
    kind = reader.require("type", fields.one_of(*kinds))
    said = reader.require("text", spoken)
    if kind == "output_text":
        reader.take("annotations", _read_none_of_them, None)
        reader.take("logprobs", fields.array, None)
    reader.refuse_rest(frozenset({"prompt_cache_breakpoint"}))
    return said


def _read_none_of_them(name: str, value: object) -> None:
    if fields.array(name, value):
        raise InvalidRequestError(
            f"{name} is not supported by plait, and nothing is ignored here: leave it out",
            param=name,
            reason="unsupported_parameter",
        )


def _read_tool_use(reader: Fields) -> ToolUse | None:
    none: tuple[ToolFunction, ...] = ()
    functions = reader.take("tools", _read_tools, none)
    choice = reader.take("tool_choice", _read_choice, None)
    is_parallel = reader.take("parallel_tool_calls", fields.flag, None)
    if not functions:
        if choice is not None and choice[0] is ToolMode.AUTO:
            choice = None  # clients send both with no tools at all
        is_parallel = None
    return tool_use(functions, choice, is_parallel=is_parallel)


def _read_tools(name: str, value: object) -> tuple[ToolFunction, ...]:
    items = fields.array(name, value)
    return tuple(_read_tool(f"{name}[{at}]", item) for at, item in enumerate(items))


def _read_tool(name: str, value: object) -> ToolFunction:
    reader = Fields(fields.json_object(name, value), name)
    require_function(reader)
    function = ToolFunction(
        name=reader.require("name", read_name),
        description=reader.take("description", fields.text, ""),
        parameters=reader.take("parameters", read_schema, ""),
        is_strict=reader.take("strict", fields.flag, default=False),
    )
    reader.refuse_rest(frozenset({"allowed_callers", "async", "defer_loading", "output_schema"}))
    return function


def _read_choice(name: str, value: object) -> tuple[ToolMode, str]:
    if isinstance(value, str):
        return read_mode(name, value), ""
    reader = Fields(fields.json_object(name, value), name)
    require_function(reader)
    named = reader.require("name", fields.text)
    reader.refuse_rest(frozenset())
    return ToolMode.REQUIRED, named


def _read_text_options(name: str, value: object) -> Constraint | None:
    """`text`: its `format` has the schema's fields beside its type."""
    reader = Fields(fields.json_object(name, value), name)
    constraint = reader.take("format", _read_format, None)
    reader.refuse_rest(frozenset({"verbosity"}))
    return constraint


def _read_format(name: str, value: object) -> Constraint | None:
    given = dict(fields.json_object(name, value))
    if given.get("type") == "json_schema":
        inner = {key: given.pop(key) for key in [*given] if key != "type"}
        given["json_schema"] = inner
    return read_response_format(name, given)


def _read_logprobs(reader: Fields) -> int | None:
    wanted = reader.take("include", _read_include, default=False)
    top = reader.take("top_logprobs", fields.integer_between(0, TOP_LOGPROBS_MAX), None)
    if top and not wanted:
        raise InvalidRequestError(
            f"top_logprobs is only allowed where include names {LOGPROBS}", param="top_logprobs"
        )
    return (top or 0) if wanted else None


def _read_include(name: str, value: object) -> bool:
    wanted = fields.array(name, value)
    for at, item in enumerate(wanted):
        fields.one_of(LOGPROBS)(f"{name}[{at}]", item)
    return bool(wanted)


def _read_false(name: str, value: object) -> None:
    if fields.flag(name, value):
        raise InvalidRequestError(
            f"{name} must be false: plait keeps no answers", param=name, reason="unsupported_value"
        )


def _read_metadata(name: str, value: object) -> None:
    """Up to 16 short texts, given back with the answer."""
    given = fields.json_object(name, value)
    if len(given) > METADATA_MAX:
        raise InvalidRequestError(
            f"{name} holds {len(given)} entries, at most {METADATA_MAX}", param=name
        )
    for key, entry in given.items():
        words = fields.text(f"{name}.{key[:METADATA_KEY_CHARS_MAX]}", entry)
        if len(key) > METADATA_KEY_CHARS_MAX or len(words) > METADATA_CHARS_MAX:
            raise InvalidRequestError(
                f"{name}: keys have up to {METADATA_KEY_CHARS_MAX} characters, entries up to "
                f"{METADATA_CHARS_MAX}",
                param=name,
            )
