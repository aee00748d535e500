"""Tools, choices and response formats in OpenAI's form -> the wire."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from plait.errors import InvalidRequestError
from plait.wire.v1 import common_pb2, gateway_pb2

T = TypeVar("T")
_MODES: Final = {
    "none": gateway_pb2.TOOL_MODE_NONE,
    "auto": gateway_pb2.TOOL_MODE_AUTO,
    "required": gateway_pb2.TOOL_MODE_REQUIRED,
}
_ANY_OBJECT: Final = '{"type":"object"}'


def constraint_of(value: Mapping[str, object]) -> common_pb2.Constraint | None:
    """What a `response_format` asks for; None for plain text. Raises InvalidRequestError."""
    name = "response_format"
    fields = _mapping(name, value)
    kind = _take(fields, name, "type", _text)
    constraint: common_pb2.Constraint | None = None
    match kind:
        case "text":
            pass
        case "json_object":
            constraint = common_pb2.Constraint(json_schema=_ANY_OBJECT)
        case "json_schema":
            named = _take(fields, name, "json_schema", _mapping)
            schema = _take(named, f"{name}.json_schema", "schema", _mapping)
            for key in ("name", "description", "strict"):
                named.pop(key, None)
            _refuse_rest(named, f"{name}.json_schema")
            constraint = common_pb2.Constraint(
                json_schema=_json(f"{name}.json_schema.schema", schema)
            )
        case "regex":
            constraint = common_pb2.Constraint(regex=_take(fields, name, "pattern", _text))
        case "grammar":
            constraint = common_pb2.Constraint(grammar=_take(fields, name, "grammar", _text))
        case _:
            raise _wrong(f"{name}.type", f"{kind!r} is not offered by plait")
    _refuse_rest(fields, name)
    return constraint


def tools_of(value: Sequence[Mapping[str, object]]) -> list[gateway_pb2.Tool]:
    """`tools`, functions all of them. Raises InvalidRequestError naming the place."""
    return [_tool(f"tools[{at}]", entry) for at, entry in enumerate(value)]


def _tool(name: str, value: object) -> gateway_pb2.Tool:
    fields = _mapping(name, value)
    _function_type(fields, name)
    function = _take(fields, name, "function", _mapping)
    _refuse_rest(fields, name)
    inner = f"{name}.function"
    tool = gateway_pb2.Tool(name=_take(function, inner, "name", _text))
    if function.get("description") is not None:
        tool.description = _text(f"{inner}.description", function["description"])
    if function.get("parameters") is not None:
        tool.parameters_json = _json(f"{inner}.parameters", function["parameters"])
    if function.get("strict") is not None:
        tool.strict = bool(function["strict"])
    for key in ("description", "parameters", "strict"):
        function.pop(key, None)
    _refuse_rest(function, inner)
    return tool


def choice_of(value: str | Mapping[str, object]) -> gateway_pb2.ToolChoice:
    """`tool_choice`. Raises InvalidRequestError."""
    name = "tool_choice"
    if isinstance(value, str):
        mode = _MODES.get(value)
        if mode is None:
            raise _wrong(name, f"{value!r} is not offered: none, auto, required or a function")
        return gateway_pb2.ToolChoice(mode=mode)
    fields = _mapping(name, value)
    _function_type(fields, name)
    function = _take(fields, name, "function", _mapping)
    chosen = _take(function, f"{name}.function", "name", _text)
    _refuse_rest(fields, name)
    return gateway_pb2.ToolChoice(function=chosen)


def message_of(name: str, value: Mapping[str, object]) -> gateway_pb2.ChatMessage:
    """One message of a chat. Raises InvalidRequestError naming the place."""
    fields = dict(value)
    message = gateway_pb2.ChatMessage(role=_take(fields, name, "role", _text))
    calls = fields.pop("tool_calls", None)
    content = fields.pop("content", None)
    if content is None and not calls:
        raise _wrong(f"{name}.content", "is missing")
    if content is not None:
        message.content = _text(f"{name}.content", content)
    if calls:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise _wrong(f"{name}.tool_calls", "must be a list")
        for at, call in enumerate(calls):
            message.tool_calls.append(_call(f"{name}.tool_calls[{at}]", call))
    if fields.get("tool_call_id") is not None:
        message.tool_call_id = _take(fields, name, "tool_call_id", _text)
    if message.role == "tool" and fields.get("name") is not None:
        message.name = _take(fields, name, "name", _text)
    _refuse_rest({key: left for key, left in fields.items() if left is not None}, name)
    return message


def _call(name: str, value: object) -> gateway_pb2.ToolCall:
    fields = _mapping(name, value)
    _function_type(fields, name)
    function = _take(fields, name, "function", _mapping)
    call = gateway_pb2.ToolCall(
        id=_take(fields, name, "id", _text),
        name=_take(function, f"{name}.function", "name", _text),
        arguments_json=_take(function, f"{name}.function", "arguments", _text),
    )
    fields.pop("index", None)
    _refuse_rest(fields, name)
    return call


def _function_type(fields: dict[str, object], name: str) -> None:
    if fields.pop("type", "function") != "function":
        raise _wrong(f"{name}.type", "must be function")


def _take(fields: dict[str, object], name: str, key: str, read: Callable[[str, object], T]) -> T:
    if fields.get(key) is None:
        raise _wrong(f"{name}.{key}", "is missing")
    return read(f"{name}.{key}", fields.pop(key))


def _mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise _wrong(name, "must be a mapping")
    return dict(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "must be text")
    return value


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(name, f"is no JSON: {error}") from error


def _refuse_rest(fields: Mapping[str, object], name: str) -> None:
    for key in fields:
        raise _wrong(f"{name}.{key}", "is unknown, and nothing is ignored here")


def _wrong(name: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} {what}", param=name)
