"""The request body of Anthropic's /v1/messages, and what plait makes of it.

Every field of the published schema is either read here or listed as refused.
"""

import json
from collections.abc import Mapping
from typing import Final

from coordinator.gateway import fields
from coordinator.gateway.conversation import Call, ToolFunction, ToolMode, ToolUse, Turn
from coordinator.gateway.fields import Fields
from coordinator.gateway.messages import bounded_items, spoken
from coordinator.gateway.order import Conversation, Order, check_order, check_text
from coordinator.gateway.response_format import read_name, read_schema
from coordinator.gateway.schema import CompletionOrder
from coordinator.gateway.tool_fields import read_call_id, tool_use
from plait.errors import InvalidRequestError
from plait.types import Constraint, ConstraintKind, SamplingParams

REFUSED: Final = frozenset(
    {
        "container",
        "context_management",
        "diagnostics",
        "inference_geo",
        "mcp_servers",
        "output_format",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Published fields that plait does not honour; null passes."""

FAILED_TOOL: Final = "Error: "
"""Put before what a tool says that failed: chat templates have no other word for it."""

_TOOL_REFUSED: Final = frozenset(
    {"allowed_callers", "defer_loading", "eager_input_streaming", "input_examples"}
)
_MODES: Final = {"auto": ToolMode.AUTO, "any": ToolMode.REQUIRED, "none": ToolMode.NONE}
_TIERS: Final = ("auto", "standard_only")


Choice = tuple[tuple[ToolMode, str] | None, bool | None]
"""A mode, with the function that must be called, and whether calls may be several."""

_NO_CHOICE: Final[Choice] = (None, None)


def read_message_order(content: Mapping[str, object]) -> CompletionOrder:
    """The body of /v1/messages. Raises InvalidRequestError naming the parameter."""
    reader = Fields(content)
    prompt = _read_conversation(reader)
    order = Order(
        prompt=prompt,
        model_id=reader.require("model", fields.text),
        max_tokens=reader.require("max_tokens", fields.integer_between(1, (1 << 31) - 1)),
        sampling=SamplingParams(
            temperature=reader.take("temperature", _read_temperature, 1.0),
            top_k=reader.take("top_k", fields.integer_between(0, 1 << 31), 0),
            top_p=reader.take("top_p", fields.number, 1.0),
            constraint=reader.take("output_config", _read_output_config, None),
        ),
        stop=reader.take("stop_sequences", fields.strings, ()),
    )
    user = reader.take("metadata", _read_metadata, None)
    is_stream = reader.take("stream", fields.flag, default=False)
    reader.take("service_tier", fields.one_of(*_TIERS), None)
    reader.take("thinking", _refuse_thinking, None)
    reader.take("cache_control", _read_cache_control, None)
    reader.refuse_rest(REFUSED)
    check_order(order)
    return CompletionOrder(
        orders=(order,),
        model_id=order.model_id,
        is_chat=True,
        is_stream=is_stream,
        includes_usage=True,
        top_logprobs=None,
        user=user,
    )


def read_count_order(content: Mapping[str, object]) -> Order:
    """The body of /v1/messages/count_tokens. Raises InvalidRequestError naming the parameter."""
    reader = Fields(content)
    order = Order(prompt=_read_conversation(reader), model_id=reader.require("model", fields.text))
    reader.take("thinking", _refuse_thinking, None)
    reader.take("cache_control", _read_cache_control, None)
    reader.refuse_rest(REFUSED)
    check_order(order)
    return order


def _read_conversation(reader: Fields) -> Conversation:
    system = reader.take("system", _read_text_blocks, "")
    turns = reader.require("messages", _read_messages)
    if system:
        turns = (Turn("system", system), *turns)
    none: tuple[ToolFunction, ...] = ()
    functions = reader.take("tools", _read_tools, none)
    choice, is_parallel = reader.take("tool_choice", _read_choice, _NO_CHOICE)
    return Conversation(turns, _tool_use(functions, choice, is_parallel=is_parallel))


def _tool_use(
    functions: tuple[ToolFunction, ...],
    choice: tuple[ToolMode, str] | None,
    *,
    is_parallel: bool | None,
) -> ToolUse | None:
    if choice is not None and choice[0] is not ToolMode.REQUIRED and not functions:
        return None  # published: auto and none may stand alone
    return tool_use(functions, choice, is_parallel=is_parallel)


def _read_messages(name: str, value: object) -> tuple[Turn, ...]:
    items = bounded_items(name, value)
    turns: list[Turn] = []
    for at, item in enumerate(items):
        turns += _read_message(f"{name}[{at}]", item)
    if turns and turns[-1].role == "assistant":
        raise InvalidRequestError(
            f"{name} must not end with the assistant's: plait does not continue an answer",
            param=f"{name}[{len(items) - 1}].role",
            reason="unsupported_value",
        )
    return tuple(turns)


def _read_message(name: str, value: object) -> list[Turn]:
    reader = Fields(fields.json_object(name, value), name)
    role = reader.require("role", fields.text)
    read = {"user": _read_user, "assistant": _read_assistant}.get(role)
    if read is None:
        raise InvalidRequestError(
            f"{name}.role {role[:40]!r} is not known: user or assistant", param=f"{name}.role"
        )
    turns = reader.require("content", read)
    reader.refuse_rest(frozenset())
    return turns


def _read_user(name: str, value: object) -> list[Turn]:
    """Text, and what tools said; both in their order."""
    if isinstance(value, str):
        return [Turn("user", spoken(name, value))]
    turns: list[Turn] = []
    for where, kind, reader in _blocks(name, value):
        match kind:
            case "text":
                said = _read_text(reader)
                if turns and turns[-1].role == "user":
                    said = f"{turns.pop().content}\n{said}"
                turns.append(Turn("user", said))
            case "tool_result":
                turns.append(_read_tool_result(reader))
            case _:
                raise _unknown_block(where, kind, "text and tool_result")
    return turns


def _read_assistant(name: str, value: object) -> list[Turn]:
    if isinstance(value, str):
        return [Turn("assistant", spoken(name, value))]
    said: list[str] = []
    calls: list[Call] = []
    for where, kind, reader in _blocks(name, value):
        match kind:
            case "text":
                said.append(_read_text(reader))
            case "tool_use":
                calls.append(_read_tool_use(reader))
            case _:
                raise _unknown_block(where, kind, "text and tool_use")
    return [Turn("assistant", "\n".join(said), calls=tuple(calls))]


def _read_text_blocks(name: str, value: object) -> str:
    """A string, or an array of text blocks."""
    if isinstance(value, str):
        return spoken(name, value)
    said: list[str] = []
    for where, kind, reader in _blocks(name, value):
        if kind != "text":
            raise _unknown_block(where, kind, "text")
        said.append(_read_text(reader))
    return "\n".join(said)


def _blocks(name: str, value: object) -> list[tuple[str, str, Fields]]:
    """Place, kind and fields of each content block; there is at least one."""
    items = fields.array(name, value)
    if not items:
        raise InvalidRequestError(f"{name} must hold at least one block", param=name)
    found: list[tuple[str, str, Fields]] = []
    for at, item in enumerate(items):
        where = f"{name}[{at}]"
        reader = Fields(fields.json_object(where, item), where)
        found.append((where, reader.require("type", fields.text), reader))
    return found


def _read_text(reader: Fields) -> str:
    said = reader.require("text", spoken)
    reader.take("cache_control", _read_cache_control, None)
    reader.refuse_rest(frozenset({"citations"}))
    return said


def _read_tool_use(reader: Fields) -> Call:
    call = Call(
        reader.require("id", read_call_id),
        reader.require("name", fields.text),
        json.dumps(reader.require("input", fields.json_object), ensure_ascii=False),
    )
    check_text(call.arguments, reader.name("input"))
    reader.take("cache_control", _read_cache_control, None)
    reader.refuse_rest(frozenset({"caller", "toolset_name"}))
    return call


def _read_tool_result(reader: Fields) -> Turn:
    call_id = reader.require("tool_use_id", read_call_id)
    said = reader.take("content", _read_text_blocks, "")
    has_failed = reader.take("is_error", fields.flag, default=False)
    reader.take("cache_control", _read_cache_control, None)
    reader.refuse_rest(frozenset({"toolset_name"}))
    return Turn("tool", FAILED_TOOL + said if has_failed else said, call_id=call_id)


def _read_tools(name: str, value: object) -> tuple[ToolFunction, ...]:
    items = fields.array(name, value)
    return tuple(_read_tool(f"{name}[{at}]", item) for at, item in enumerate(items))


def _read_tool(name: str, value: object) -> ToolFunction:
    reader = Fields(fields.json_object(name, value), name)
    reader.take("type", fields.one_of("custom"), None)
    function = ToolFunction(
        name=reader.require("name", read_name),
        description=reader.take("description", fields.text, ""),
        parameters=reader.require("input_schema", read_schema),
        is_strict=reader.take("strict", fields.flag, default=False),
    )
    reader.take("cache_control", _read_cache_control, None)
    reader.refuse_rest(_TOOL_REFUSED)
    return function


def _read_choice(name: str, value: object) -> Choice:
    reader = Fields(fields.json_object(name, value), name)
    kind = reader.require("type", fields.one_of(*_MODES, "tool"))
    named = reader.require("name", fields.text) if kind == "tool" else ""
    is_single = reader.take("disable_parallel_tool_use", fields.flag, None)
    reader.refuse_rest(frozenset())
    return (
        _MODES.get(kind, ToolMode.REQUIRED),
        named,
    ), None if is_single is None else not is_single


def _read_cache_control(name: str, value: object) -> None:
    """Every prompt's beginning is kept for reuse, so this asks for what happens anyway. How long is
    nobody's promise: a lifetime is refused."""
    reader = Fields(fields.json_object(name, value), name)
    reader.require("type", fields.one_of("ephemeral"))
    reader.refuse_rest(frozenset({"ttl"}))


def _read_output_config(name: str, value: object) -> Constraint | None:
    reader = Fields(fields.json_object(name, value), name)
    constraint = reader.take("format", _read_format, None)
    reader.refuse_rest(frozenset({"effort"}))
    return constraint


def _read_format(name: str, value: object) -> Constraint:
    reader = Fields(fields.json_object(name, value), name)
    reader.require("type", fields.one_of("json_schema"))
    schema = reader.require("schema", read_schema)
    reader.refuse_rest(frozenset())
    return Constraint(ConstraintKind.JSON_SCHEMA, schema)


def _read_temperature(name: str, value: object) -> float:
    temperature = fields.number(name, value)
    if not 0.0 <= temperature <= 1.0:
        raise InvalidRequestError(f"{name} must be between 0 and 1, not {temperature}", param=name)
    return temperature


def _read_metadata(name: str, value: object) -> str | None:
    reader = Fields(fields.json_object(name, value), name)
    user = reader.take("user_id", fields.text, None)
    reader.refuse_rest(frozenset())
    if user is not None:
        check_text(user, f"{name}.user_id")
    return user


def _refuse_thinking(name: str, value: object) -> None:
    reader = Fields(fields.json_object(name, value), name)
    reader.require("type", fields.one_of("disabled"))
    reader.refuse_rest(frozenset())


def _unknown_block(where: str, kind: str, known: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{where}.type {kind[:40]!r} is not supported here: plait takes {known} blocks",
        param=f"{where}.type",
        reason="unsupported_value",
    )
