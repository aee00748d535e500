"""Honour or refuse, never ignore: over the whole published schema of both endpoints."""

import json
from typing import Any

import pytest
from openai.types import completion_create_params as completion_schema
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import completion_create_params as chat_schema

from coordinator.gateway.schema import CHAT_REFUSED, COMPLETION_REFUSED
from tests.kit.gateway_rig import open_gateway
from tests.kit.scripted_network import ScriptedNetwork, says

CHAT_HONOURED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "model": "tiny",
    "frequency_penalty": 0.5,
    "logprobs": True,
    "max_completion_tokens": 4,
    "max_tokens": 4,
    "n": 2,
    "presence_penalty": 0.5,
    "seed": 1,
    "service_tier": "flex",
    "stop": ["x", "y"],
    "stream": False,
    "stream_options": None,
    "temperature": 0.5,
    "top_logprobs": 2,
    "top_p": 0.5,
    "user": "someone",
    "logit_bias": {"97": -5, "98": 2.5},
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "look_up"}}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
}
COMPLETION_HONOURED: dict[str, Any] = {
    "prompt": "hi",
    "model": "tiny",
    "frequency_penalty": 0.5,
    "logprobs": 2,
    "max_tokens": 4,
    "n": 2,
    "presence_penalty": 0.5,
    "seed": 1,
    "stop": "x",
    "stream": False,
    "stream_options": None,
    "temperature": 0.5,
    "top_p": 0.5,
    "user": "someone",
    "logit_bias": {"97": -5},
}
OURS: dict[str, Any] = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "draft_tokens": 3}


def published(module: Any) -> set[str]:
    names: set[str] = set()
    for kind in ("Base", "NonStreaming", "Streaming"):
        params = getattr(module, f"CompletionCreateParams{kind}")
        names |= params.__required_keys__ | params.__optional_keys__
    return names


def test_every_published_field_is_honoured_or_listed_as_refused() -> None:
    assert published(chat_schema) == set(CHAT_HONOURED) | CHAT_REFUSED
    assert published(completion_schema) == set(COMPLETION_HONOURED) | COMPLETION_REFUSED


@pytest.mark.parametrize(
    ("path", "base", "refused"),
    [
        ("/v1/chat/completions", CHAT_HONOURED, CHAT_REFUSED),
        ("/v1/completions", COMPLETION_HONOURED, COMPLETION_REFUSED),
    ],
)
async def test_fields_of_the_schema(
    path: str, base: dict[str, Any], refused: frozenset[str]
) -> None:
    async with open_gateway(ScriptedNetwork(says("hello"))) as rig, rig.http() as client:
        whole = await client.post(path, json={**base, **OURS})
        assert whole.status_code == 200, whole.text
        assert len(whole.json()["choices"]) == 2
        for name in sorted(refused):
            values: tuple[Any, ...] = (True, "auto", [], {"type": "text"})
            for value in values:
                answer = await client.post(path, json={**base, name: value})
                assert answer.status_code == 400, name
                assert answer.json()["error"]["param"] == name
                assert answer.json()["error"]["type"] == "invalid_request_error"
            assert (await client.post(path, json={**base, name: None})).status_code == 200
        for name in ("colour", "best-of", "functions2", ""):
            for odd in (None, 1):
                answer = await client.post(path, json={**base, name: odd})
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == name
                assert answer.json()["error"]["code"] == "unknown_parameter"


CHAT_BAD: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "temperature"),
    ("temperature", 2.1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("temperature", True, "temperature"),
    ("temperature", 10**400, "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("min_p", -1, "min_p"),
    ("top_k", -1, "top_k"),
    ("top_k", 1.5, "top_k"),
    ("presence_penalty", 3, "presence_penalty"),
    ("frequency_penalty", -3, "frequency_penalty"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("draft_tokens", 16, "draft_tokens"),
    ("draft_tokens", -1, "draft_tokens"),
    ("draft_tokens", True, "draft_tokens"),
    ("seed", 1 << 64, "seed"),
    ("seed", "1", "seed"),
    ("n", 0, "n"),
    ("n", 17, "n"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -5, "max_tokens"),
    ("max_tokens", 10**9, "max_tokens"),
    ("max_completion_tokens", 0, "max_completion_tokens"),
    ("stop", "", "stop"),
    ("stop", [1], "stop[0]"),
    ("stop", ["a"] * 17, "stop"),
    ("stream", "yes", "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("logprobs", 2, "logprobs"),
    ("top_logprobs", 21, "top_logprobs"),
    ("user", 5, "user"),
    ("user", "\ud800", "user"),
    ("stop", "\ud800", "stop"),
    ("\ud800", 1, "\ud800"),
    ("model", 5, "model"),
    ("model", None, "model"),
    ("messages", None, "messages"),
    ("messages", [], "messages"),
    ("messages", "hi", "messages"),
    ("messages", ["hi"], "messages[0]"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"content": "x"}], "messages[0].role"),
    ("messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ("messages", [{"role": "function", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": "x", "name": "bob"}], "messages[0].name"),
    ("messages", [{"role": "user", "content": 7}], "messages[0].content"),
    ("messages", [{"role": "user", "content": "\ud800"}], "messages[0].content"),
    (
        "messages",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content[0].type",
    ),
]


async def test_bad_values_name_the_parameter() -> None:
    base = {"model": "tiny", "messages": CHAT_HONOURED["messages"]}
    async with open_gateway(ScriptedNetwork(says("hello"))) as rig, rig.http() as client:
        for name, value, param in CHAT_BAD:
            body = json.dumps({**base, name: value})
            answer = await client.post("/v1/chat/completions", content=body)
            assert answer.status_code == 400, (name, value, answer.text)
            assert answer.json()["error"]["param"] == param, (name, value)
        both = {**base, "max_tokens": 3, "max_completion_tokens": 4}
        answer = await client.post("/v1/chat/completions", json=both)
        assert answer.json()["error"]["param"] == "max_completion_tokens"
        alone = await client.post("/v1/chat/completions", json={**base, "top_logprobs": 2})
        assert alone.json()["error"]["param"] == "top_logprobs"


def test_messages_and_stream_options_have_no_fields_we_have_not_met() -> None:
    assert ChatCompletionUserMessageParam.__annotations__.keys() == {"content", "role", "name"}
    assert ChatCompletionAssistantMessageParam.__annotations__.keys() == {
        "role",
        "audio",
        "content",
        "function_call",
        "name",
        "refusal",
        "tool_calls",
    }
    assert ChatCompletionStreamOptionsParam.__annotations__.keys() == {
        "include_obfuscation",
        "include_usage",
    }


async def test_text_parts_developer_and_the_answer_sent_back() -> None:
    network = ScriptedNetwork(says("ok"))
    async with open_gateway(network) as rig:
        client = rig.openai()
        first = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}]
        )
        await client.chat.completions.create(
            model="tiny",
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": "a"},
                first.choices[0].message.model_dump(),  # type: ignore[list-item]
                {"role": "user", "content": [{"type": "text", "text": "b"}]},
            ],
        )
    prompt = bytes(network.starts[1].prompt_token_ids).decode()
    assert prompt == "<system>be brief<user>a<assistant>ok<user>b<assistant>"
