"""The messages of a chat."""

from typing import Final

from coordinator.gateway import fields
from coordinator.gateway.conversation import Call, Turn
from coordinator.gateway.fields import Fields
from coordinator.gateway.order import check_text
from coordinator.gateway.tool_fields import read_call_id, read_calls
from plait.errors import InvalidRequestError

MESSAGES_MAX: Final = 4_096
_ROLES: Final = {
    "system": "system",
    "developer": "system",  # its successor in the published API; open models know `system`
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_REFUSED: Final = frozenset(
    {"annotations", "audio", "function_call", "name", "refusal", "tool_call_id", "tool_calls"}
)
_PART_REFUSED: Final = frozenset({"prompt_cache_breakpoint"})


def read_messages(name: str, value: object) -> tuple[Turn, ...]:
    """Raises InvalidRequestError naming the place: `messages[3].content[0].type`."""
    items = bounded_items(name, value)
    return tuple(_read_message(f"{name}[{at}]", item) for at, item in enumerate(items))


def _read_message(name: str, value: object) -> Turn:
    reader = Fields(fields.json_object(name, value), name)
    role = reader.require("role", fields.text)
    if role not in _ROLES:
        raise InvalidRequestError(
            f"{name}.role {role!r} is not supported: plait knows {', '.join(_ROLES)}",
            param=f"{name}.role",
        )
    calls: tuple[Call, ...] = ()
    if role == "assistant":
        calls = reader.take("tool_calls", read_calls, calls)
    call_id = reader.require("tool_call_id", read_call_id) if role == "tool" else ""
    content = (
        reader.take("content", _read_content, "")
        if calls
        else reader.require("content", _read_content)
    )
    reader.refuse_rest(_REFUSED)
    return Turn(_ROLES[role], content, calls=calls, call_id=call_id)


def _read_content(name: str, value: object) -> str:
    """A string, or an array of text parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequestError(
            f"{name} must be a string or an array of text parts", param=name, reason="invalid_type"
        )
    return "".join(_read_part(f"{name}[{at}]", part) for at, part in enumerate(value))


def _read_part(name: str, value: object) -> str:
    reader = Fields(fields.json_object(name, value), name)
    kind = reader.require("type", fields.text)
    if kind != "text":
        raise InvalidRequestError(
            f"{name}.type {kind!r} is not supported: plait takes text parts only",
            param=f"{name}.type",
        )
    content = reader.require("text", fields.text)
    reader.refuse_rest(_PART_REFUSED)
    return content


def bounded_items(name: str, value: object) -> list[object]:
    """The messages of a conversation, before they are read: at least one, and not too many."""
    items = fields.array(name, value)
    if not items:
        raise InvalidRequestError(f"{name} must hold at least one message", param=name)
    if len(items) > MESSAGES_MAX:
        raise InvalidRequestError(
            f"{name} holds {len(items)} messages, at most {MESSAGES_MAX}", param=name
        )
    return items


def spoken(name: str, value: object) -> str:
    """Text of a turn, found wrong where it stands: a turn's place need not be a message's."""
    said = fields.text(name, value)
    check_text(said, name)
    return said
