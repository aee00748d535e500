"""Tools, choices, response formats and tool messages in OpenAI's form reach the wire or are refused
by name."""

import json

import pytest

from plait.errors import InvalidRequestError, ServiceError
from plait.sdk.requests import build_request
from plait.sdk.results import ToolCall
from plait.sdk.tools import choice_of, constraint_of, message_of, tools_of
from plait.wire.v1 import common_pb2, gateway_pb2

SCHEMA = {"type": "object", "properties": {"ä": {"type": "string"}}}


def test_response_formats() -> None:
    assert constraint_of({"type": "text"}) is None
    anything = constraint_of({"type": "json_object"})
    assert anything is not None and json.loads(anything.json_schema) == {"type": "object"}
    named = {"name": "n", "description": "d", "strict": True, "schema": SCHEMA}
    held = constraint_of({"type": "json_schema", "json_schema": named})
    assert held is not None and json.loads(held.json_schema) == SCHEMA
    grammar = constraint_of({"type": "grammar", "grammar": 'start: "a"'})
    assert grammar == common_pb2.Constraint(grammar='start: "a"')


def test_tools_and_choices() -> None:
    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    (tool,) = tools_of([{"type": "function", "function": function}])
    assert (tool.name, tool.description, tool.strict) == ("f", "d", False)
    assert json.loads(tool.parameters_json) == SCHEMA
    assert choice_of("required").mode == gateway_pb2.TOOL_MODE_REQUIRED


def test_a_call_and_its_answer_as_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = message_of("m", {"role": "assistant", "content": None, "tool_calls": [call]})
    assert asked.tool_calls[0] == gateway_pb2.ToolCall(id="c1", name="f", arguments_json="{}")
    told = message_of("m", {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "f"})
    assert (told.content, told.tool_call_id, told.name) == ("4", "c1", "f")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "regex"}}, "response_format.pattern"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]},
            "tools[0].function.x",
        ),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
    ],
)
def test_what_cannot_be_sent_is_named(options: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_request([{"role": "user", "content": "x"}], options)  # type: ignore[arg-type]
    assert caught.value.param == param


def test_arguments_are_parsed_or_their_end_is_missed() -> None:
    assert ToolCall(call_id="c", name="f", arguments='{"a": 1}').parse() == {"a": 1}
    for text in ('{"a": ', "[1]"):
        with pytest.raises(ServiceError):
            ToolCall(call_id="c", name="f", arguments=text).parse()
