"""Bodies of Anthropic's messages."""

from typing import Final

from coordinator.gateway.messages import MESSAGES_MAX
from coordinator.gateway.openapi.parts import (
    ANY_OBJECT,
    CALL_ID,
    FLAG,
    MODEL,
    NAME,
    TEXT,
    TOP_P,
    Schema,
    array,
    either,
    integer,
    number,
    record,
    ref,
    says,
    texts,
    word,
)
from coordinator.gateway.order import STOP_CHARS_MAX, STOPS_MAX
from coordinator.gateway.tool_fields import TOOLS_MAX

_CACHED: Final[dict[str, Schema]] = {
    "cache_control": says(
        record({"type": word("ephemeral")}), "Every prompt's beginning is kept for reuse anyway."
    )
}
_TEXT_BLOCK: Final = record({"type": word("text"), "text": TEXT}, _CACHED)
_TEXT_BLOCKS: Final = either(TEXT, array(_TEXT_BLOCK, 1))
_RESULT: Final = record(
    {"type": word("tool_result"), "tool_use_id": CALL_ID},
    {"content": _TEXT_BLOCKS, "is_error": FLAG, **_CACHED},
)
_USE: Final = record(
    {"type": word("tool_use"), "id": CALL_ID, "name": TEXT, "input": ANY_OBJECT}, _CACHED
)

TURN: Final = either(
    record({"role": word("user"), "content": either(TEXT, array(either(_TEXT_BLOCK, _RESULT), 1))}),
    record(
        {"role": word("assistant"), "content": either(TEXT, array(either(_TEXT_BLOCK, _USE), 1))}
    ),
)

_CONVERSATION_REQUIRED: Final[dict[str, Schema]] = {
    "model": MODEL,
    "messages": says(array(ref("Turn"), 1, MESSAGES_MAX), "The last one is not the assistant's."),
}
_CONVERSATION: Final[dict[str, Schema]] = {
    "system": _TEXT_BLOCKS,
    "tools": array(
        record(
            {"name": NAME, "input_schema": ANY_OBJECT},
            {"type": word("custom"), "description": TEXT, "strict": FLAG, **_CACHED},
        ),
        high=TOOLS_MAX,
    ),
    "tool_choice": either(
        record({"type": word("auto", "any", "none")}, {"disable_parallel_tool_use": FLAG}),
        record({"type": word("tool"), "name": TEXT}, {"disable_parallel_tool_use": FLAG}),
    ),
    "thinking": record({"type": word("disabled")}),
    **_CACHED,
}

COUNT: Final = record(_CONVERSATION_REQUIRED, _CONVERSATION)

MESSAGES: Final = record(
    {**_CONVERSATION_REQUIRED, "max_tokens": integer(1, (1 << 31) - 1)},
    {
        **_CONVERSATION,
        "temperature": number(0, 1),
        "top_k": integer(0, 1 << 31),
        "top_p": TOP_P,
        "stop_sequences": array(texts(1, STOP_CHARS_MAX), high=STOPS_MAX),
        "output_config": record(
            {}, {"format": record({"type": word("json_schema"), "schema": ANY_OBJECT})}
        ),
        "metadata": record({}, {"user_id": TEXT}),
        "stream": FLAG,
        "service_tier": word("auto", "standard_only"),
    },
)
