"""What a chat is made of: turns, the functions that a model may call, and its calls of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ROLES: Final = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class Call:
    """A function call of an assistant; `arguments` is a JSON object as text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `calls` are an assistant's, `call_id` and `name` say what a tool answers."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFunction:
    """A function that a model may call. `parameters` is the JSON schema of its arguments as text,
    empty where it takes any; `is_strict`: the arguments follow it in every case."""

    name: str
    description: str = ""
    parameters: str = ""
    is_strict: bool = False


class ToolMode(StrEnum):
    """Whether the model calls functions: never, as it likes, or at least one."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The functions of a request. `named` is the one that must be called, empty for any."""

    functions: tuple[ToolFunction, ...]
    mode: ToolMode = ToolMode.AUTO
    named: str = ""
    is_parallel: bool = True

    @property
    def callable_functions(self) -> tuple[ToolFunction, ...]:
        """Those that may be called."""
        if self.mode is ToolMode.NONE:
            return ()
        if self.named:
            return tuple(each for each in self.functions if each.name == self.named)
        return self.functions

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar holds the calls."""
        is_strict = any(each.is_strict for each in self.callable_functions)
        return self.mode is ToolMode.REQUIRED or (self.mode is ToolMode.AUTO and is_strict)


def conversation_chars(turns: Sequence[Turn], tools: ToolUse | None) -> int:
    """How many characters clients wrote."""
    said = sum(
        len(turn.content) + sum(len(call.name) + len(call.arguments) for call in turn.calls)
        for turn in turns
    )
    shown = tools.functions if tools is not None else ()
    return said + sum(len(each.description) + len(each.parameters) for each in shown)
