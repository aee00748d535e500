"""OpenAI's /v1/responses, driven by the openai package over a scripted network."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import (
    FunctionToolParam,
    Response,
    ResponseInputParam,
    response_create_params,
)

from coordinator.gateway.responses_schema import LOGPROBS, REFUSED
from tests.kit.gateway_rig import open_gateway
from tests.kit.scripted_network import ScriptedNetwork, says

SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object"},
    "strict": False,
}
CALL = '{"name": "add", "arguments": {"a": 1}}'
HONOURED: dict[str, Any] = {
    "model": "tiny",
    "input": "hi",
    "instructions": "Be brief.",
    "background": False,
    "include": [LOGPROBS],
    "max_output_tokens": 64,
    "metadata": {"for": "a test"},
    "parallel_tool_calls": False,
    "service_tier": "flex",
    "store": False,
    "stream": False,
    "temperature": 0.5,
    "text": {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}},
    "tool_choice": "auto",
    "tools": [TOOL],
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "disabled",
    "user": "someone",
}


def prompt_of(network: ScriptedNetwork) -> bytes:
    return bytes(network.starts[-1].prompt_token_ids)


async def test_an_answer_and_what_it_cost() -> None:
    network = ScriptedNetwork(says("hello"), cached_tokens=16)
    async with open_gateway(network) as rig:
        told = await rig.openai().responses.create(
            model="tiny", input="hi", instructions="Be brief.", metadata={"a": "b"}
        )
    assert told.output_text == "hello" and told.status == "completed"
    assert told.id.startswith("resp_") and told.model == "tiny"
    assert (told.instructions, told.metadata) == ("Be brief.", {"a": "b"})
    assert told.usage is not None
    assert told.usage.input_tokens == len(prompt_of(network))
    assert told.usage.input_tokens_details.cached_tokens == 16
    assert told.usage.output_tokens == len("hello") + 1
    assert prompt_of(network).startswith(b"<system>Be brief.<user>hi")


async def test_an_answer_that_was_cut_says_so() -> None:
    async with open_gateway(ScriptedNetwork(says("hello"))) as rig:
        told = await rig.openai().responses.create(model="tiny", input="hi", max_output_tokens=3)
    assert (told.status, told.output_text) == ("incomplete", "hel")
    assert told.incomplete_details is not None
    assert told.incomplete_details.reason == "max_output_tokens"


async def test_a_stream_builds_the_same_answer() -> None:
    async with open_gateway(ScriptedNetwork(says("hello"))) as rig:
        events = [
            event
            async for event in await rig.openai().responses.create(
                model="tiny", input="hi", stream=True, include=[LOGPROBS], top_logprobs=0
            )
        ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "hello"
    assert [kind for kind in kinds if kind != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed" and last.response.output_text == "hello"
    part = last.response.output[0]
    assert part.type == "message" and part.content[0].type == "output_text"
    assert part.content[0].logprobs is not None
    assert len(part.content[0].logprobs) == len("hello")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_functions_are_called_and_heard(*, is_stream: bool) -> None:
    network = ScriptedNetwork(says(CALL))
    async with open_gateway(network) as rig:
        client = rig.openai()
        told: Response
        if is_stream:
            async with client.responses.stream(model="tiny", input="hi", tools=[TOOL]) as stream:
                told = await stream.get_final_response()
        else:
            told = await client.responses.create(model="tiny", input="hi", tools=[TOOL])
        (call,) = told.output
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})
        history: ResponseInputParam = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Let me see."},
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            },
            {"type": "function_call_output", "call_id": call.call_id, "output": "1"},
        ]
        await client.responses.create(
            model="tiny", input=history, max_output_tokens=4, tools=[TOOL], tool_choice="none"
        )
    said = prompt_of(network)
    assert said.count(b"<assistant>") == 2, "one turn of the model's, and its next one"
    assert b"Let me see." in said and b"<tool>1" in said


async def test_a_schema_holds_the_answer() -> None:
    network = ScriptedNetwork(says("{}"))
    async with open_gateway(network) as rig:
        await rig.openai().responses.create(
            model="tiny",
            input="hi",
            text={"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}},
        )
    assert json.loads(network.starts[0].open.sampling.constraint.json_schema) == SCHEMA


def test_every_published_field_is_honoured_or_listed_as_refused() -> None:
    published: set[str] = set()
    for kind in ("NonStreaming", "Streaming"):
        params = getattr(response_create_params, f"ResponseCreateParams{kind}")
        published |= params.__required_keys__ | params.__optional_keys__
    known = set(HONOURED) | REFUSED
    assert published <= known, published - known
    assert not set(HONOURED) & REFUSED


async def test_fields_of_the_schema() -> None:
    async with open_gateway(ScriptedNetwork(says("hello"))) as rig, rig.http() as client:
        whole = await client.post("/v1/responses", json=HONOURED)
        assert whole.status_code == 200, whole.text
        assert whole.json()["service_tier"] == "flex"
        for name in sorted(REFUSED):
            values: tuple[Any, ...] = (True, "auto", [], {"type": "text"})
            for value in values:
                answer = await client.post("/v1/responses", json={**HONOURED, name: value})
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == name
            nothing = await client.post("/v1/responses", json={**HONOURED, name: None})
            assert nothing.status_code == 200


BAD: list[tuple[str, Any, str]] = [
    ("input", None, "input"),
    ("input", [], "input"),
    ("input", 5, "input"),
    ("input", [{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
    ("input", [{"role": "critic", "content": "x"}], "input[0].role"),
    ("input", [{"type": "reasoning"}], "input[0].type"),
    ("input", "\ud800", "input"),
    ("instructions", "\ud800", "instructions"),
    ("store", True, "store"),
    ("background", True, "background"),
    ("truncation", "auto", "truncation"),
    ("include", ["reasoning.encrypted_content"], "include[0]"),
    ("top_logprobs", 21, "top_logprobs"),
    ("max_output_tokens", 0, "max_output_tokens"),
    ("temperature", 2.5, "temperature"),
    ("metadata", {"a": 1}, "metadata.a"),
    ("metadata", {str(at): "" for at in range(17)}, "metadata"),
    ("tools", [{"type": "web_search"}], "tools[0].type"),
    ("tool_choice", "most", "tool_choice"),
    ("tool_choice", {"type": "function", "name": "mul"}, "tool_choice"),
    ("text", {"verbosity": "low"}, "text.verbosity"),
    ("text", {"format": {"type": "xml"}}, "text.format.type"),
    ("colour", 1, "colour"),
]


@pytest.mark.parametrize(("name", "value", "param"), BAD, ids=range(len(BAD)))
async def test_bad_input_is_named(name: str, value: Any, param: str) -> None:
    network = ScriptedNetwork(says("hello"))
    async with open_gateway(network) as rig, rig.http() as client:
        body = json.dumps({**HONOURED, name: value}).encode()
        answer = await client.post("/v1/responses", content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert network.starts == []


async def test_a_failure_in_mid_stream_is_an_event() -> None:
    network = ScriptedNetwork(pause_after=2, attempts_max=1)
    async with open_gateway(network) as rig:
        stream = await rig.openai().responses.create(model="tiny", input="hi", stream=True)
        got = ""
        with pytest.raises(openai.APIError, match="lost its wits"):
            async for event in stream:
                if event.type == "response.output_text.delta":
                    got += event.delta
                    if len(got) == 2:
                        network.break_first("lost its wits")
                elif event.type == "error":
                    raise openai.APIError(event.message, stream.response.request, body=None)
