"""Bodies of OpenAI's APIs: chat, completions, responses."""

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
from coordinator.gateway.order import LOGIT_BIAS, STOP_CHARS_MAX, STOPS_MAX
from coordinator.gateway.responses_schema import LOGPROBS
from coordinator.gateway.schema import (
    CHOICES_MAX,
    COMPLETION_LOGPROBS_MAX,
    COMPLETION_MAX_TOKENS,
    TIERS,
)
from coordinator.gateway.tool_fields import CALLS_MAX, TOOLS_MAX
from plait.types import DRAFTS_MAX

_TEXT_PART: Final = record({"type": word("text"), "text": TEXT})
_CONTENT: Final = either(TEXT, array(_TEXT_PART))
_CALL: Final = record(
    {
        "id": CALL_ID,
        "type": word("function"),
        "function": record(
            {"name": TEXT, "arguments": says(TEXT, "A JSON object, as text.")},
        ),
    }
)
_TOKEN_IDS: Final = array(integer(0), 1)
_STREAM_OPTIONS: Final = says(record({}, {"include_usage": FLAG}), "Only where `stream` is true.")

_SAMPLING: Final[dict[str, Schema]] = {
    "temperature": number(0, 2),
    "top_p": TOP_P,
    "top_k": says(integer(0, 1 << 31), "plait's own; 0: all tokens."),
    "min_p": says(number(0, 1), "plait's own."),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repetition_penalty": says(number(0.01, 10), "plait's own."),
    "logit_bias": says(
        {
            "type": "object",
            "patternProperties": {"^[0-9]{1,9}$": number(-LOGIT_BIAS, LOGIT_BIAS)},
            "additionalProperties": False,
        },
        "Token ids, and what is added to their logits.",
    ),
    "seed": says(
        {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 64) - 1},
        "The same seed, the same draws.",
    ),
    "stop": either(texts(1, STOP_CHARS_MAX), array(texts(1, STOP_CHARS_MAX), high=STOPS_MAX)),
    "draft_tokens": says(integer(0, DRAFTS_MAX), "plait's own: guesses that may go along."),
    "service_tier": says(word(*TIERS), "`flex` waits behind the others."),
    "response_format": ref("ResponseFormat"),
    "n": integer(1, CHOICES_MAX),
    "user": TEXT,
    "stream": FLAG,
    "stream_options": _STREAM_OPTIONS,
}

RESPONSE_FORMAT: Final = either(
    record({"type": word("text", "json_object")}),
    record(
        {
            "type": word("json_schema"),
            "json_schema": record(
                {"name": NAME, "schema": ANY_OBJECT}, {"description": TEXT, "strict": FLAG}
            ),
        }
    ),
    says(record({"type": word("regex"), "pattern": texts()}), "plait's own."),
    says(record({"type": word("grammar"), "grammar": texts()}), "plait's own: Lark."),
)

_FUNCTION: Final = record(
    {"name": NAME}, {"description": TEXT, "parameters": ANY_OBJECT, "strict": FLAG}
)

MESSAGE: Final = either(
    record({"role": word("system", "developer", "user"), "content": _CONTENT}),
    record(
        {"role": word("assistant")},
        {"content": _CONTENT, "tool_calls": array(_CALL, 1, CALLS_MAX)},
        says="`content` may be absent beside calls alone.",
    ),
    record({"role": word("tool"), "content": _CONTENT, "tool_call_id": CALL_ID}),
)

CHAT: Final = record(
    {"model": MODEL, "messages": array(ref("Message"), 1, MESSAGES_MAX)},
    {
        **_SAMPLING,
        "max_tokens": integer(1),
        "max_completion_tokens": integer(1),
        "logprobs": FLAG,
        "top_logprobs": says(integer(0, 20), "Only where `logprobs` is true."),
        "tools": array(record({"type": word("function"), "function": _FUNCTION}), high=TOOLS_MAX),
        "tool_choice": either(
            word("auto", "none", "required"),
            record({"type": word("function"), "function": record({"name": TEXT})}),
        ),
        "parallel_tool_calls": FLAG,
    },
)

COMPLETION: Final = record(
    {
        "model": MODEL,
        "prompt": either(texts(), array(texts(), 1), _TOKEN_IDS, array(_TOKEN_IDS, 1)),
    },
    {
        **_SAMPLING,
        "max_tokens": says(integer(1), f"{COMPLETION_MAX_TOKENS} where it is absent."),
        "logprobs": integer(0, COMPLETION_LOGPROBS_MAX),
    },
)

_SPOKEN: Final = either(TEXT, array(record({"type": word("input_text"), "text": TEXT})))
_ANSWERED: Final = either(
    TEXT,
    array(
        record(
            {"type": word("output_text", "input_text"), "text": TEXT},
            {"annotations": array(ANY_OBJECT, high=0), "logprobs": array(ANY_OBJECT)},
        )
    ),
)
_GIVEN_BACK: Final[dict[str, Schema]] = {"id": TEXT, "status": TEXT}

INPUT_ITEM: Final = either(
    record(
        {"role": word("system", "developer", "user"), "content": _SPOKEN},
        {"type": word("message"), **_GIVEN_BACK},
    ),
    record(
        {"role": word("assistant"), "content": _ANSWERED},
        {"type": word("message"), **_GIVEN_BACK},
    ),
    record(
        {"type": word("function_call"), "call_id": CALL_ID, "name": TEXT, "arguments": TEXT},
        _GIVEN_BACK,
    ),
    record(
        {"type": word("function_call_output"), "call_id": CALL_ID, "output": _SPOKEN}, _GIVEN_BACK
    ),
)

RESPONSE: Final = record(
    {"model": MODEL, "input": either(TEXT, array(ref("InputItem"), 1, MESSAGES_MAX))},
    {
        "instructions": TEXT,
        "max_output_tokens": integer(1, (1 << 31) - 1),
        "temperature": number(0, 2),
        "top_p": TOP_P,
        "include": array(word(LOGPROBS)),
        "top_logprobs": says(integer(0, 20), f"Only where `include` names {LOGPROBS}."),
        "text": record(
            {},
            {
                "format": either(
                    record({"type": word("text", "json_object")}),
                    record(
                        {"type": word("json_schema"), "name": NAME, "schema": ANY_OBJECT},
                        {"description": TEXT, "strict": FLAG},
                    ),
                )
            },
        ),
        "tools": array(
            record(
                {"type": word("function"), "name": NAME},
                {"description": TEXT, "parameters": ANY_OBJECT, "strict": FLAG},
            ),
            high=TOOLS_MAX,
        ),
        "tool_choice": either(
            word("auto", "none", "required"), record({"type": word("function"), "name": TEXT})
        ),
        "parallel_tool_calls": FLAG,
        "service_tier": word(*TIERS),
        "user": TEXT,
        "stream": FLAG,
        "store": says({"const": False}, "Nothing is kept between requests."),
        "background": {"const": False},
        "truncation": word("disabled"),
        "metadata": says(
            {"type": "object", "maxProperties": 16, "additionalProperties": texts(0, 512)},
            "Given back with the answer.",
        ),
    },
)
