"""Text at its seams: characters of several tokens, stop strings, offsets; streamed or whole."""

import json
from typing import Any

import pytest

from tests.kit.gateway_rig import open_gateway
from tests.kit.scripted_network import ScriptedNetwork, says

COMPLETIONS = "/v1/completions"
ANSWER = "a é 🦊🦊 end 👩‍🚀!"


async def ask(script: str, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The choice of one request, whole; and its chunks, streamed."""
    body = {"model": "tiny", "prompt": "x", "max_tokens": 100, "logprobs": 1, **more}
    async with (
        open_gateway(ScriptedNetwork(says(script))) as rig,
        rig.http() as client,
    ):
        whole = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
        chunks = []
        async with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line[6:])["choices"][0])
    return whole, chunks


def told(chunks: list[dict[str, Any]], what: str) -> list[Any]:
    return [entry for c in chunks if c["logprobs"] is not None for entry in c["logprobs"][what]]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ([], ANSWER),
        (["🦊"], "a é "),
        (["🦊 e"], "a é 🦊"),
        (["👩‍🚀"], "a é 🦊🦊 end "),
        (["\u200d"], "a é 🦊🦊 end 👩"),
        (["👩‍🚀?", "!"], "a é 🦊🦊 end 👩‍🚀"),
    ],
)
async def test_a_stream_says_what_the_whole_answer_says(stop: list[str], expected: str) -> None:
    whole, chunks = await ask(ANSWER, stop=stop)
    assert whole["text"] == expected
    assert "".join(chunk["text"] for chunk in chunks) == expected
    assert {whole["finish_reason"], chunks[-1]["finish_reason"]} == {"stop"}
    for what in ("tokens", "token_logprobs", "text_offset"):
        assert told(chunks, what) == whole["logprobs"][what], what


async def test_offsets_count_characters_and_tokens_of_one_share_its_place() -> None:
    whole, _ = await ask("a🦊b")
    assert whole["logprobs"]["text_offset"] == [0, 1, 1, 1, 1, 2]
