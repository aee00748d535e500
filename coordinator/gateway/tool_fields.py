"""`tools`, `tool_choice`, `parallel_tool_calls` and the calls in messages."""

import json
from collections.abc import Mapping
from typing import Final

from coordinator.gateway import fields
from coordinator.gateway.conversation import Call, ToolFunction, ToolMode, ToolUse
from coordinator.gateway.fields import Fields
from coordinator.gateway.response_format import read_name, read_schema
from coordinator.gateway.tool_calls import is_object
from plait.errors import InvalidRequestError

TOOLS_MAX: Final = 128
CALLS_MAX: Final = 128
CALL_ID_CHARS_MAX: Final = 256


def read_tool_use(reader: Fields) -> ToolUse | None:
    """Take the fields of a chat's body. Raises InvalidRequestError naming the place."""
    none: tuple[ToolFunction, ...] = ()
    functions = reader.take("tools", _read_tools, none)
    choice = reader.take("tool_choice", _read_choice, None)
    is_parallel = reader.take("parallel_tool_calls", fields.flag, None)
    return tool_use(functions, choice, is_parallel=is_parallel)


def tool_use(
    functions: tuple[ToolFunction, ...],
    choice: tuple[ToolMode, str] | None,
    *,
    is_parallel: bool | None,
) -> ToolUse | None:
    """What the parts come to, from whichever door. Raises InvalidRequestError where they do not
    fit: a choice without tools, a function that is not among them, two of one name."""
    if not functions:
        if choice is not None and choice[0] is not ToolMode.NONE:
            raise InvalidRequestError(
                "tool_choice is only allowed where tools are given", param="tool_choice"
            )
        if is_parallel is not None:
            raise InvalidRequestError(
                "parallel_tool_calls is only allowed where tools are given",
                param="parallel_tool_calls",
            )
        return None
    if len(functions) > TOOLS_MAX:
        raise InvalidRequestError(
            f"{len(functions)} tools, at most {TOOLS_MAX} are taken", param="tools"
        )
    names = [each.name for each in functions]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise InvalidRequestError(
                f"two tools are called {name!r}", param=f"tools[{at}].function.name"
            )
    mode, named = choice if choice is not None else (ToolMode.AUTO, "")
    if named and named not in names:
        raise InvalidRequestError(
            f"tool_choice names {named!r}, which is not among the tools", param="tool_choice"
        )
    return ToolUse(
        functions=functions,
        mode=mode,
        named=named,
        is_parallel=is_parallel is not False,
    )


def _read_tools(name: str, value: object) -> tuple[ToolFunction, ...]:
    items = fields.array(name, value)
    return tuple(_read_tool(f"{name}[{at}]", item) for at, item in enumerate(items))


def _read_tool(name: str, value: object) -> ToolFunction:
    reader = Fields(fields.json_object(name, value), name)
    require_function(reader)
    function = reader.require("function", _read_function)
    reader.refuse_rest(frozenset())
    return function


def _read_function(name: str, value: object) -> ToolFunction:
    reader = Fields(fields.json_object(name, value), name)
    function = ToolFunction(
        name=reader.require("name", read_name),
        description=reader.take("description", fields.text, ""),
        parameters=reader.take("parameters", read_schema, ""),
        is_strict=reader.take("strict", fields.flag, default=False),
    )
    reader.refuse_rest(frozenset())
    return function


def _read_choice(name: str, value: object) -> tuple[ToolMode, str]:
    if isinstance(value, str):
        return read_mode(name, value), ""
    reader = Fields(fields.json_object(name, value), name)
    require_function(reader)
    named = reader.require("function", _read_named)
    reader.refuse_rest(frozenset())
    return ToolMode.REQUIRED, named


def read_mode(name: str, value: str) -> ToolMode:
    """A choice that is a word; the others are objects."""
    return ToolMode(fields.one_of(*ToolMode)(name, value))


def _read_named(name: str, value: object) -> str:
    reader = Fields(fields.json_object(name, value), name)
    named = reader.require("name", fields.text)
    reader.refuse_rest(frozenset())
    return named


def read_calls(name: str, value: object) -> tuple[Call, ...]:
    """`tool_calls` of an assistant's message."""
    items = fields.array(name, value)
    if len(items) > CALLS_MAX:
        raise InvalidRequestError(
            f"{name} holds {len(items)} calls, at most {CALLS_MAX} are taken", param=name
        )
    return tuple(_read_call(f"{name}[{at}]", item) for at, item in enumerate(items))


def _read_call(name: str, value: object) -> Call:
    reader = Fields(fields.json_object(name, value), name)
    require_function(reader)
    call_id = reader.require("id", read_call_id)
    function = Fields(reader.require("function", fields.json_object), f"{name}.function")
    call = checked_call(
        name,
        Call(
            call_id,
            function.require("name", fields.text),
            function.require("arguments", fields.text),
        ),
    )
    function.refuse_rest(frozenset())
    reader.refuse_rest(frozenset({"index"}))
    return call


def checked_call(name: str, call: Call) -> Call:
    """Raises InvalidRequestError for arguments that are no JSON object; none are an empty one."""
    if not call.arguments.strip():
        return Call(call.call_id, call.name, "{}")
    if not is_object(call.arguments):
        raise InvalidRequestError(
            f"{name}.function.arguments must be a JSON object as text",
            param=f"{name}.function.arguments",
        )
    return call


def read_call_id(name: str, value: object) -> str:
    call_id = fields.text(name, value)
    if not 0 < len(call_id) <= CALL_ID_CHARS_MAX:
        raise InvalidRequestError(
            f"{name} must have 1 to {CALL_ID_CHARS_MAX} characters", param=name
        )
    return call_id


def require_function(reader: Fields) -> None:
    """Take the `type` of a tool, a choice or a call: functions are all there is."""
    reader.require("type", fields.one_of("function"))


def openai_tool(function: ToolFunction) -> Mapping[str, object]:
    """A function as chat templates expect it: OpenAI's object."""
    described: dict[str, object] = {"name": function.name, "description": function.description}
    described["parameters"] = (
        json.loads(function.parameters)
        if function.parameters
        else {"type": "object", "properties": {}}
    )
    return {"type": "function", "function": described}
