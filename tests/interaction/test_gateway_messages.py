"""Anthropic's /v1/messages, driven by its own client over a scripted network."""

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from coordinator.gateway.anthropic_schema import REFUSED
from tests.kit.gateway_rig import NO_TLS, GatewayRig, open_gateway
from tests.kit.lazily import lazily
from tests.kit.scripted_network import API_KEY, ScriptedNetwork, says

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message, MessageParam, ToolParam
else:
    anthropic = lazily("anthropic")

ASK: "list[MessageParam]" = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: "list[ToolParam]" = [{"name": "add", "input_schema": {"type": "object"}}]
CALL = '{"name": "add", "arguments": {"a": 1}}'
HONOURED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 64,
    "messages": ASK,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "metadata": {"user_id": "someone"},
    "stop_sequences": ["x"],
    "stream": False,
    "service_tier": "standard_only",
    "thinking": {"type": "disabled"},
    "cache_control": {"type": "ephemeral"},
    "tools": TOOLS,
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
SAMPLED: dict[str, Any] = {"temperature": 0.5, "top_k": 5, "top_p": 0.5}


def client_of(rig: GatewayRig, *, key: str = API_KEY) -> "anthropic.AsyncAnthropic":
    client = anthropic.DefaultAsyncHttpxClient(verify=NO_TLS)
    return anthropic.AsyncAnthropic(
        base_url=rig.url, api_key=key, max_retries=0, timeout=10.0, http_client=client
    )


def http(rig: GatewayRig) -> httpx.AsyncClient:
    return rig.http({"x-api-key": API_KEY})


def prompt_of(network: ScriptedNetwork) -> bytes:
    return bytes(network.starts[-1].prompt_token_ids)


async def test_an_answer_and_what_it_cost() -> None:
    network = ScriptedNetwork(says("hello"), cached_tokens=16)
    async with open_gateway(network) as rig:
        told = await client_of(rig).messages.create(
            model="tiny", max_tokens=64, messages=ASK, system="Be brief."
        )
    (block,) = told.content
    assert block.type == "text" and block.text == "hello"
    assert (told.stop_reason, told.stop_sequence, told.role) == ("end_turn", None, "assistant")
    assert told.id.startswith("msg_") and told.model == "tiny"
    assert told.usage.input_tokens == len(prompt_of(network)) - 16, "those that were run"
    assert told.usage.cache_read_input_tokens == 16
    assert told.usage.output_tokens == len("hello") + 1
    assert prompt_of(network).startswith(b"<system>Be brief.<user>hi")


async def test_why_an_answer_ends() -> None:
    async with open_gateway(ScriptedNetwork(says("one two three"))) as rig:
        client = client_of(rig)
        cut = await client.messages.create(model="tiny", max_tokens=3, messages=ASK)
        stopped = await client.messages.create(
            model="tiny", max_tokens=64, messages=ASK, stop_sequences=["three", "two"]
        )
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
    assert stopped.content[0].type == "text" and stopped.content[0].text == "one "


async def test_a_stream_is_the_same_message() -> None:
    network = ScriptedNetwork(says("hello"), cached_tokens=5)
    async with open_gateway(network) as rig:
        async with client_of(rig).messages.stream(
            model="tiny", max_tokens=64, messages=ASK
        ) as stream:
            first = await anext(stream)
            kinds = [first.type, *[event.type async for event in stream]]
        told = await stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert told.content[0].type == "text" and told.content[0].text == "hello"
    assert told.stop_reason == "end_turn"
    num_run = len(prompt_of(network)) - 5
    assert (told.usage.input_tokens, told.usage.output_tokens) == (num_run, len("hello") + 1)
    assert first.type == "message_start"
    for usage in (first.message.usage, told.usage):
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (num_run, 5)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_tools_are_called_and_heard(*, is_stream: bool) -> None:
    network = ScriptedNetwork(says(CALL))
    async with open_gateway(network) as rig:
        client = client_of(rig)
        told: Message
        if is_stream:
            async with client.messages.stream(
                model="tiny", max_tokens=64, messages=ASK, tools=TOOLS
            ) as stream:
                told = await stream.get_final_message()
        else:
            told = await client.messages.create(
                model="tiny", max_tokens=64, messages=ASK, tools=TOOLS
            )
        (call,) = told.content
        assert call.type == "tool_use" and (call.name, call.input) == ("add", {"a": 1})
        assert told.stop_reason == "tool_use"
        answers: list[MessageParam] = [
            *ASK,
            {"role": "assistant", "content": [call]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": "no",
                        "is_error": True,
                    },
                    {"type": "text", "text": "so?"},
                ],
            },
        ]
        await client.messages.create(
            model="tiny", max_tokens=4, messages=answers, tools=TOOLS, tool_choice={"type": "none"}
        )
    assert b"<tool>Error: no<user>so?" in prompt_of(network)


async def test_a_call_cut_by_the_limit_says_so() -> None:
    async with open_gateway(ScriptedNetwork(says(CALL))) as rig:
        told = await client_of(rig).messages.create(
            model="tiny", max_tokens=len(CALL) - 3, messages=ASK, tools=TOOLS
        )
    assert told.stop_reason == "max_tokens"
    assert told.content[0].type == "tool_use"
    assert told.content[0].input == {"INVALID_JSON": '{"a": '}


async def test_tokens_are_counted_and_not_run() -> None:
    network = ScriptedNetwork(says("hello"))
    async with open_gateway(network) as rig:
        client = client_of(rig)
        counted = await client.messages.count_tokens(model="tiny", messages=ASK, system="x")
        assert network.starts == []
        told = await client.messages.create(model="tiny", max_tokens=1, messages=ASK, system="x")
    assert counted.input_tokens == told.usage.input_tokens


async def test_errors_have_their_own_classes() -> None:
    async with open_gateway(ScriptedNetwork(says("hello"))) as rig:
        client = client_of(rig)
        with pytest.raises(anthropic.AuthenticationError):
            await client_of(rig, key="wrong").messages.create(
                model="tiny", max_tokens=1, messages=ASK
            )
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="other", max_tokens=1, messages=ASK)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens must be between"):
            await client.messages.create(model="tiny", max_tokens=0, messages=ASK)
        async with http(rig) as raw:
            answer = await raw.post("/v1/messages", content=b"{")
    told = answer.json()
    assert answer.status_code == 400 and told["type"] == "error"
    assert told["error"]["type"] == "invalid_request_error"


async def test_a_failure_in_mid_stream_is_an_event() -> None:
    network = ScriptedNetwork(pause_after=2, attempts_max=1)
    async with open_gateway(network) as rig:
        with pytest.raises(anthropic.APIStatusError, match="lost its wits"):
            async with client_of(rig).messages.stream(
                model="tiny", max_tokens=9, messages=ASK
            ) as stream:
                got = ""
                async for text in stream.text_stream:
                    got += text
                    if len(got) == 2:
                        network.break_first("lost its wits")


def test_every_published_field_is_honoured_or_listed_as_refused() -> None:
    published: set[str] = set()
    for kind in ("NonStreaming", "Streaming"):
        params = getattr(anthropic.types.message_create_params, f"MessageCreateParams{kind}")
        published |= params.__required_keys__ | params.__optional_keys__
    known = set(HONOURED) | set(SAMPLED) | REFUSED
    assert published <= known, published - known
    assert not set(HONOURED) & REFUSED


async def test_fields_of_the_schema() -> None:
    async with open_gateway(ScriptedNetwork(says("hello"))) as rig, http(rig) as client:
        whole = await client.post("/v1/messages", json={**HONOURED, **SAMPLED})
        assert whole.status_code == 200, whole.text
        for name in sorted(REFUSED):
            values: tuple[Any, ...] = (True, "auto", [], {"type": "text"})
            for value in values:
                answer = await client.post("/v1/messages", json={**HONOURED, name: value})
                assert answer.status_code == 400 and name in answer.json()["error"]["message"]
            nothing = await client.post("/v1/messages", json={**HONOURED, name: None})
            assert nothing.status_code == 200


BAD: list[tuple[str, Any, str]] = [
    ("max_tokens", None, "max_tokens is missing"),
    ("max_tokens", 0, "max_tokens must be between"),
    ("messages", [], "at least one message"),
    ("messages", [{"role": "system", "content": "x"}], "messages[0].role"),
    ("messages", [*ASK, {"role": "assistant", "content": "I"}], "does not continue"),
    ("messages", [{"role": "user", "content": []}], "at least one block"),
    ("messages", [{"role": "user", "content": [{"type": "image"}]}], "messages[0].content[0].type"),
    ("messages", [{"role": "user", "content": "\ud800"}], "messages[0].content"),
    ("messages", [{"role": "user", "content": "x", "name": "y"}], "messages[0].name"),
    ("system", 5, "system must be an array"),
    ("temperature", 1.5, "temperature must be between 0 and 1"),
    ("top_p", 0, "top_p"),
    ("stop_sequences", [""], "stop"),
    ("thinking", {"type": "enabled", "budget_tokens": 1024}, "thinking.type"),
    ("service_tier", "priority", "service_tier"),
    ("cache_control", {"type": "ephemeral", "ttl": "1h"}, "cache_control.ttl"),
    ("metadata", {"user_id": "\ud800"}, "metadata.user_id"),
    ("tools", [{"name": "add"}], "tools[0].input_schema is missing"),
    ("tools", [{"name": "add", "type": "bash_20250124", "input_schema": {}}], "tools[0].type"),
    ("tool_choice", {"type": "tool", "name": "mul"}, "not among the tools"),
    ("tool_choice", {"type": "most"}, "tool_choice.type"),
    ("output_config", {"format": {"type": "xml"}}, "output_config.format.type"),
    ("output_config", {"effort": "low"}, "output_config.effort"),
    ("colour", 1, "colour is unknown"),
]


@pytest.mark.parametrize(("name", "value", "said"), BAD, ids=range(len(BAD)))
async def test_bad_input_is_named(name: str, value: Any, said: str) -> None:
    network = ScriptedNetwork(says("hello"))
    async with open_gateway(network) as rig, http(rig) as client:
        body = json.dumps({**HONOURED, name: value}).encode()
        answer = await client.post("/v1/messages", content=body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]
    assert network.starts == []
