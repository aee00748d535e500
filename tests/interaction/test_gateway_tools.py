"""Tools, response formats and biases through both doors, over a scripted network."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from coordinator.core import events as ev
from plait.errors import InvalidRequestError
from plait.sdk import Messages
from plait.types import FinishReason
from plait.wire.v1 import common_pb2, data_pb2
from tests.kit.gateway_rig import open_doors, open_gateway
from tests.kit.scripted_network import ScriptedNetwork, says

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 1 + 2?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "halt", "description": "Stop it all."}},
]
CALL = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": PARAMETERS}}


def sampling_of(network: ScriptedNetwork) -> common_pb2.SamplingParams:
    return network.starts[-1].open.sampling


async def test_a_call_is_an_answer_with_its_own_reason() -> None:
    network = ScriptedNetwork(says(f'{CALL}\n{{"name": "halt"}}'))
    async with open_gateway(network) as rig:
        answer = await rig.openai().chat.completions.create(
            model="tiny", messages=ASK, tools=TOOLS, logprobs=True
        )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls is not None
    first, second = choice.message.tool_calls
    assert first.type == second.type == "function"
    assert (first.function.name, first.function.arguments) == ("add", '{"a": 1, "b": 2}')
    assert (second.function.name, second.function.arguments) == ("halt", "{}")
    assert first.id != second.id and len(first.id) == 9
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == len(CALL) + len('\n{"name": "halt"}')
    assert not sampling_of(network).HasField("constraint")
    assert bytes(network.starts[0].prompt_token_ids).startswith(b"<tools>add,halt<user>")
    ended = network.of(ev.LastTokenSent)[0]
    assert isinstance(ended, ev.LastTokenSent) and ended.finish_reason is FinishReason.STOP


async def test_calls_are_streamed_as_they_come() -> None:
    async with open_gateway(ScriptedNetwork(says(CALL))) as rig:
        stream = await rig.openai().chat.completions.create(
            model="tiny", messages=ASK, tools=TOOLS, n=2, stream=True
        )
        chunks = [chunk async for chunk in stream]
    for index in range(2):
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert choices[0].delta.role == "assistant"
        pieces = [call for choice in choices for call in choice.delta.tool_calls or []]
        assert len(pieces) > 4 and all(piece.index == 0 for piece in pieces)
        assert pieces[0].id and pieces[0].type == "function"
        assert pieces[0].function is not None and pieces[0].function.name == "add"
        assert all(piece.id is None for piece in pieces[1:])
        arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
        assert json.loads(arguments) == {"a": 1, "b": 2}
        assert not any(choice.delta.content for choice in choices)
        assert choices[-1].finish_reason == "tool_calls"


async def test_text_beside_tools_stays_text() -> None:
    async with open_gateway(ScriptedNetwork(says("It is 3."))) as rig:
        client = rig.openai()
        choices: list[Any] = ["auto", "none"]
        for choice in choices:
            answer = await client.chat.completions.create(
                model="tiny",
                messages=ASK,
                tools=TOOLS,
                tool_choice=choice,
            )
            assert answer.choices[0].message.content == "It is 3."
            assert answer.choices[0].message.tool_calls is None
            assert answer.choices[0].finish_reason == "stop"


async def test_with_none_a_call_is_text() -> None:
    network = ScriptedNetwork(says(CALL))
    async with open_gateway(network) as rig:
        answer = await rig.openai().chat.completions.create(
            model="tiny", messages=ASK, tools=TOOLS, tool_choice="none"
        )
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"


async def test_forced_and_strict_calls_are_held_by_a_grammar() -> None:
    network = ScriptedNetwork(says(CALL))
    strict: list[Any] = [{"type": "function", "function": {"name": "add", "strict": True}}]
    named: Any = {"type": "function", "function": {"name": "add"}}
    async with open_gateway(network) as rig:
        client = rig.openai()
        choices: list[tuple[Any, Any]] = [("required", TOOLS), (named, TOOLS), ("auto", strict)]
        for choice, tools in choices:
            answer = await client.chat.completions.create(
                model="tiny", messages=ASK, tools=tools, tool_choice=choice
            )
            assert answer.choices[0].finish_reason == "tool_calls"
            assert "call_0" in sampling_of(network).constraint.grammar
        assert "call_1" not in sampling_of(network).constraint.grammar


async def test_one_call_is_all_where_they_must_not_be_parallel() -> None:
    network = ScriptedNetwork(says(f"{CALL}\n{CALL} and more"))
    async with open_gateway(network) as rig:
        answer = await rig.openai().chat.completions.create(
            model="tiny", messages=ASK, tools=TOOLS, parallel_tool_calls=False
        )
        await network.wait_for(lambda: len(network.closed) == 2)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and len(calls) == 1
    assert answer.usage is not None and answer.usage.completion_tokens == len(CALL)


async def test_an_answered_call_goes_on() -> None:
    network = ScriptedNetwork(says(CALL))
    async with open_gateway(network) as rig:
        client = rig.openai()
        first = await client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
        message = first.choices[0].message
        assert message.tool_calls is not None
        told: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
        again: Any = [*ASK, message.model_dump(), told]
        await client.chat.completions.create(model="tiny", messages=again, tools=TOOLS)
    prompt = bytes(network.starts[-1].prompt_token_ids).decode()
    assert prompt.endswith('<assistant>add{"a": 1, "b": 2}<tool>3<assistant>')


async def test_formats_and_biases_reach_the_last_stage() -> None:
    network = ScriptedNetwork(says('{"a": 1, "b": 2}'))
    async with open_gateway(network) as rig:
        client = rig.openai()
        await client.chat.completions.create(
            model="tiny", messages=ASK, response_format=FORMAT, logit_bias={"97": 5, "5": -100}
        )
        sampling = sampling_of(network)
        assert json.loads(sampling.constraint.json_schema) == PARAMETERS
        assert [(b.token_id, b.bias) for b in sampling.logit_bias] == [(5, -100), (97, 5)]
        plain: Any = {"type": "text"}
        await client.chat.completions.create(model="tiny", messages=ASK, response_format=plain)
        assert not sampling_of(network).HasField("constraint")
        pattern: Any = {"response_format": {"type": "regex", "pattern": "[0-9]+"}}
        await client.completions.create(
            model="tiny", prompt="x", extra_body=pattern, logit_bias={"97": 1}
        )
        assert sampling_of(network).constraint.regex == "[0-9]+"


async def test_a_held_answer_that_moves_takes_its_history_along() -> None:
    network = ScriptedNetwork(says('{"a": 1, "b": 2}'), pause_after=5)
    async with open_gateway(network) as rig:
        asked = asyncio.create_task(
            rig.openai().chat.completions.create(model="tiny", messages=ASK, response_format=FORMAT)
        )
        await network.wait_for(lambda: bool(network.of(ev.FirstTokenSent)))
        await network.wait_for(lambda: rig.gateway.relay.progress() == {"id2": 5})
        (request_id,) = rig.gateway.relay.progress()
        network.pause_after = None
        status = common_pb2.Status(reason="node_lost", message="gone")
        network.send(
            broken=data_pb2.Broken(
                request_id=request_id, epoch=1, stage_index=1, node_id="nlast", status=status
            )
        )
        await network.wait_for(lambda: len(network.starts) == 2)
        network.go.set()
        await asked
    opened = network.starts[1].open
    assert bytes(opened.penalty_generated_ids) == b'{"a":'
    assert json.loads(opened.sampling.constraint.json_schema) == PARAMETERS


async def test_a_grammar_that_fails_on_the_way_blames_nobody_and_is_not_tried_again() -> None:
    network = ScriptedNetwork(says("{"), pause_after=0)
    async with open_gateway(network) as rig:
        asked = asyncio.create_task(
            rig.openai().chat.completions.create(model="tiny", messages=ASK, response_format=FORMAT)
        )
        await network.wait_for(lambda: bool(network.starts))
        (request_id,) = rig.gateway.relay.progress()
        status = common_pb2.Status(reason="grammar_failed", message="too much work")
        network.send(
            broken=data_pb2.Broken(
                request_id=request_id, epoch=1, stage_index=1, node_id="nlast", status=status
            )
        )
        with pytest.raises(openai.BadRequestError) as caught:
            await asked
        network.go.set()
    assert "too much work" in str(caught.value)
    assert not network.of(ev.RouteBroke) and len(network.starts) == 1


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
    ({"logit_bias": {"97": 101}}, "logit_bias", "between"),
    ({"logit_bias": {"97": "1"}}, "logit_bias.97", "number"),
    ({"logit_bias": {"300": 1}}, "logit_bias", "vocabulary"),
    ({"logit_bias": {"7": 1, "07": 1}}, "logit_bias", "twice"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "unknown"),
    ({"response_format": "json"}, "response_format", "object"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        "response_format.json_schema.name",
        "64",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"properties": {"a": {"type": "int"}}}},
            }
        },
        "response_format.json_schema.schema.properties.a",
        "int",
    ),
    (
        {"response_format": {"type": "regex", "pattern": "(["}},
        "response_format.pattern",
        "unclosed",
    ),
    (
        {"response_format": {"type": "grammar", "grammar": "?"}},
        "response_format.grammar",
        "grammar",
    ),
    (
        {"response_format": {"type": "regex", "pattern": "a" * 70_000}},
        "response_format.pattern",
        "65536",
    ),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "not offered by plait: function"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name", "two"),
    ({"tools": [TOOLS[1]] * 129}, "tools", "128"),
    ({"tool_choice": "auto"}, "tool_choice", "tools"),
    ({"parallel_tool_calls": True}, "parallel_tool_calls", "tools"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "any"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rm"}}},
        "tool_choice",
        "rm",
    ),
    (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}},
                }
            ],
            "tool_choice": "required",
        },
        "tools[0].function.parameters.properties.a",
        "not",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
        "messages[0].tool_calls[0].type",
        "missing",
    ),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "x", "type": "function", "function": {"name": "f", "arguments": "["}}
                    ],
                }
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
        "object",
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
        "messages[0].tool_calls",
        "",
    ),
]


async def test_what_is_wrong_is_named_before_any_route_is_opened() -> None:
    network = ScriptedNetwork(says("x"))
    async with open_gateway(network) as rig, rig.http(timeout_s=20.0) as client:
        for fields, param, what in BAD:
            body = {"model": "tiny", "messages": ASK, **fields}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400, (fields, answer.text)
            error = answer.json()["error"]
            assert error["param"] == param, error
            assert what in error["message"], error
    assert not network.starts


async def test_the_sdk_calls_functions_and_answers_them() -> None:
    network = ScriptedNetwork(says(CALL))
    async with open_doors(network) as rig, rig.async_client() as client:
        asked: list[dict[str, object]] = [{"role": "user", "content": "1 + 2?"}]
        tools = json.loads(json.dumps(TOOLS))
        async with client.stream(asked, tools=tools, tool_choice="required") as stream:
            pieces = [delta.tool_call async for delta in stream if delta.tool_call is not None]
            answer = await stream.result()
        assert pieces[0].name == "add" and len(pieces) > 4
        assert answer.finish_reason is FinishReason.TOOL_CALLS and answer.text == ""
        (call,) = answer.tool_calls
        assert call.parse() == {"a": 1, "b": 2}
        told = {"role": "tool", "tool_call_id": call.call_id, "content": "3"}
        messages: Messages = [*asked, answer.message, told]
        await client.chat(messages, tools=tools, tool_choice="none")
        prompt = bytes(network.starts[-1].prompt_token_ids).decode()
        assert (
            prompt == f"<tools>add,halt<user>1 + 2?<assistant>add{call.arguments}<tool>3<assistant>"
        )
        with pytest.raises(InvalidRequestError) as caught:
            wrong = {"type": "json_schema", "json_schema": {"schema": {"anyOf": [{"not": {}}]}}}
            await client.chat(asked, response_format=wrong)
        assert caught.value.param == "response_format.json_schema.schema.anyOf[0]"
        with pytest.raises(InvalidRequestError, match="ignore_eos"):
            await client.chat(asked, response_format={"type": "json_object"}, ignore_eos=True)
        with pytest.raises(InvalidRequestError, match="chats"):
            await client.generate("x", tools=tools)
