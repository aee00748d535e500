"""A conversation in the form that chat templates take: OpenAI's objects."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.gateway.conversation import Call, ToolFunction, ToolMode, ToolUse, Turn
from coordinator.gateway.tool_fields import openai_tool

_HOW: Final = (
    "You can call functions. To call one, answer with nothing but a JSON object of this form, one "
    'line for each call:\n{"name": FUNCTION, "arguments": {...}}\nThe functions:\n'
)


@dataclass(frozen=True, slots=True)
class ChatLayout:
    """What a template sees. `tools` is None where there are none, or the template knows none."""

    messages: list[object]
    tools: list[object] | None = None

    def map_text(self, change: Callable[[str], str]) -> "ChatLayout":
        """The same with every text changed, and every name in a schema; roles stay."""
        messages = [_mapped(message, change) for message in self.messages]
        tools = None if self.tools is None else [_mapped(tool, change) for tool in self.tools]
        return ChatLayout(messages, tools)

    def texts(self) -> Iterator[str]:
        """Every text that clients wrote."""
        yield from _texts(self.messages)
        yield from _texts(self.tools or [])


def lay_out(turns: Sequence[Turn], tools: ToolUse | None, *, knows_tools: bool) -> ChatLayout:
    """For a template that `knows_tools` as they are; for another one in words."""
    functions = tools.functions if tools is not None and tools.mode is not ToolMode.NONE else ()
    if knows_tools:
        shown = [openai_tool(each) for each in functions]
        return ChatLayout([_message(turn) for turn in turns], [*shown] or None)
    plain = [_in_words(turn) for turn in turns]
    if functions:
        plain = _with_system(plain, _HOW + "\n".join(_line(each) for each in functions))
    return ChatLayout([{"role": turn.role, "content": turn.content} for turn in plain])


def _message(turn: Turn) -> dict[str, object]:
    message: dict[str, object] = {"role": turn.role, "content": turn.content}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in turn.calls
        ]
    if turn.call_id:
        message["tool_call_id"] = turn.call_id
    if turn.name:
        message["name"] = turn.name
    return message


def _in_words(turn: Turn) -> Turn:
    if turn.role == "tool":
        return Turn("user", f"The function answered:\n{turn.content}")
    if turn.calls:
        lines = [turn.content] if turn.content else []
        return Turn("assistant", "\n".join([*lines, *(_call_line(call) for call in turn.calls)]))
    return turn


def _with_system(turns: list[Turn], text: str) -> list[Turn]:
    if turns and turns[0].role == "system":
        return [Turn("system", f"{turns[0].content}\n\n{text}"), *turns[1:]]
    return [Turn("system", text), *turns]


def _line(function: ToolFunction) -> str:
    return json.dumps(openai_tool(function)["function"], ensure_ascii=False)


def _call_line(call: Call) -> str:
    content = {"name": call.name, "arguments": json.loads(call.arguments)}
    return json.dumps(content, ensure_ascii=False)


def _mapped(value: object, change: Callable[[str], str], key: str = "") -> object:
    if isinstance(value, str):
        return value if key == "role" else change(value)
    if isinstance(value, Mapping):
        return {change(name): _mapped(inner, change, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, change) for inner in value]
    return value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
