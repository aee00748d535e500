"""The `openai` package against the HTTP door, with a scripted network behind it."""

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from coordinator.core import events as ev
from plait.types import FinishReason, Reason
from tests.kit.gateway_rig import open_gateway
from tests.kit.scripted_network import ScriptedNetwork, says

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Why is the sky blue?"}]


async def test_a_chat_answers_with_usage() -> None:
    network = ScriptedNetwork(says("Rayleigh scattering. 🦊"), cached_tokens=16)
    async with open_gateway(network) as rig:
        answer = await rig.openai().chat.completions.create(model="tiny", messages=ASK, n=2)
    assert answer.choices[0].message.content == "Rayleigh scattering. 🦊"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.usage is not None
    prompt = "<user>Why is the sky blue?<assistant>"
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == 2 * (len("Rayleigh scattering. ") + 4 + 1)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 16, "the prompt counts once"


async def test_a_stream_gives_role_text_reason_usage_and_done() -> None:
    async with open_gateway(ScriptedNetwork(says("blue 🦊 sky"))) as rig:
        stream = await rig.openai().chat.completions.create(
            model="tiny", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == "blue 🦊 sky"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all("\ufffd" not in delta for delta in deltas)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 14
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_equal_seeds_give_equal_answers_and_choices_differ() -> None:
    async with open_gateway(ScriptedNetwork()) as rig:
        client = rig.openai()
        first, second = [
            await client.chat.completions.create(
                model="tiny", messages=ASK, seed=11, n=2, max_tokens=12
            )
            for _ in range(2)
        ]
        third = await client.chat.completions.create(
            model="tiny", messages=ASK, seed=12, max_tokens=12
        )
    texts = [[choice.message.content for choice in answer.choices] for answer in (first, second)]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    assert third.choices[0].message.content == texts[0][1]
    assert [choice.finish_reason for choice in first.choices] == ["length", "length"]
    assert first.usage is not None
    assert first.usage.completion_tokens == 24


async def test_a_stop_string_ends_the_answer_and_frees_the_route() -> None:
    network = ScriptedNetwork(says("one two three four"))
    async with open_gateway(network) as rig:
        answer = await rig.openai().chat.completions.create(
            model="tiny", messages=ASK, stop=["xx", " thr"]
        )
        assert answer.choices[0].message.content == "one two"
        assert answer.choices[0].finish_reason == "stop"
        await network.wait_for(lambda: len(network.closed) == 2)
    last = network.of(ev.LastTokenSent)[0]
    assert isinstance(last, ev.LastTokenSent)
    assert last.finish_reason is FinishReason.STOP


async def test_logprobs_come_with_every_token() -> None:
    async with open_gateway(ScriptedNetwork(says("ab"))) as rig:
        answer = await rig.openai().chat.completions.create(
            model="tiny", messages=ASK, logprobs=True, top_logprobs=2
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token, entry.bytes) for entry in logprobs.content] == [("a", [97]), ("b", [98])]
    assert [top.token for top in logprobs.content[0].top_logprobs] == ["a", "b"]


async def test_missing_layers_are_a_503_that_names_them() -> None:
    refusal = Reason(code="layers_missing", message="layers 2-3 of tiny have no serving node")
    async with open_gateway(ScriptedNetwork(refusal=refusal)) as rig:
        for is_stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                await rig.openai().chat.completions.create(
                    model="tiny", messages=ASK, stream=is_stream
                )
            assert caught.value.status_code == 503
            assert "layers 2-3" in caught.value.message
            assert caught.value.response.headers["retry-after"] == "5"
