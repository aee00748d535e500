"""The `openai` package, the examples and `plait ask` against three real nodes with real weights."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from plait.cli.local_network import LocalNetwork
from tests.kit.network import SMOLLM, client_of

pytestmark = pytest.mark.slow
ASK: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Name three colours, separated by commas."}
]
NUM_NODES = 3
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def client(smollm_network: LocalNetwork) -> Iterator[OpenAI]:
    """The package on the real door. Whatever it was answered came through all three nodes."""
    profile = smollm_network.profile
    yield OpenAI(
        base_url=f"{profile.http_url}/v1", api_key=profile.api_key, max_retries=0, timeout=60
    )
    routes = [request.route for request in smollm_network.view().requests if request.route]
    assert routes
    assert {len(route) for route in routes} == {NUM_NODES}


def test_chat_usage_and_stream_agree(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [SMOLLM]
    whole = client.chat.completions.create(model=SMOLLM, messages=ASK, temperature=0, max_tokens=24)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = client.chat.completions.create(
        model=SMOLLM,
        messages=ASK,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == text
    assert sum(bool(part) for part in parts) > 5
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.total_tokens == whole.usage.total_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens // 16 * 16, "all blocks"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}


def test_equal_seeds_are_equal_and_choices_follow_their_own(client: OpenAI) -> None:
    def texts(seed: int, n: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=SMOLLM, messages=ASK, seed=seed, n=n, max_tokens=16, temperature=1.2
        )
        return [choice.message.content for choice in answer.choices]

    first = texts(5, 2)
    assert texts(5, 2) == first
    assert first[0] != first[1]
    assert texts(6, 1) == first[1:]


def test_stop_cuts_and_logprobs_are_probabilities(client: OpenAI) -> None:
    whole = client.completions.create(
        model=SMOLLM, prompt="One, two, three,", max_tokens=12, temperature=0
    )
    text = whole.choices[0].text
    stop = text[len(text) // 2 :][:3]
    cut = client.completions.create(
        model=SMOLLM, prompt="One, two, three,", max_tokens=12, temperature=0, stop=[stop]
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    scored = client.chat.completions.create(
        model=SMOLLM, messages=ASK, temperature=0, max_tokens=6, logprobs=True, top_logprobs=5
    )
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert "".join(entry.token for entry in logprobs.content) == scored.choices[0].message.content
    for entry in logprobs.content:
        best = [top.logprob for top in entry.top_logprobs]
        assert len(best) == 5
        assert best == sorted(best, reverse=True)
        assert entry.logprob == best[0] <= 0  # greedy: the chosen one is the likeliest


def test_refusals_come_from_the_real_network_too(
    client: OpenAI, smollm_network: LocalNetwork
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=SMOLLM, messages=ASK, store=True)
    assert caught.value.param == "store"
    with pytest.raises(openai.BadRequestError, match="leaves no room"):
        client.completions.create(model=SMOLLM, prompt="word " * 9000)
    kv_tokens = min(node.kv_tokens_max for node in smollm_network.view().nodes)
    with pytest.raises(openai.BadRequestError, match="KV cache"):
        client.completions.create(model=SMOLLM, prompt="word " * kv_tokens, max_tokens=10)
    with pytest.raises(openai.NotFoundError, match=SMOLLM):
        client.chat.completions.create(model="gpt", messages=ASK)


@pytest.mark.parametrize("name", ["ask.py", "stream.py", "openai_client.py"])
def test_the_examples_run(smollm_network: LocalNetwork, name: str) -> None:
    done = run_example(smollm_network, [str(EXAMPLES / name)])
    assert len(done.stdout.splitlines()[0]) > 10


def test_ask_prints_the_chain(smollm_network: LocalNetwork) -> None:
    arguments = ["-m", "plait.cli.main", "ask", "Why is the sky blue?", "--max-tokens", "8", "-v"]
    done = run_example(smollm_network, arguments)
    assert done.stdout.strip()
    for number in range(1, NUM_NODES + 1):
        assert f"node {number} [" in done.stderr


def test_the_status_of_the_sdk_is_the_networks(smollm_network: LocalNetwork) -> None:
    with client_of(smollm_network) as client:
        status = client.status()
    assert status.num_nodes_serving == NUM_NODES
    assert [model.model for model in status.models] == [SMOLLM]
    assert status.models[0].is_ready


def run_example(network: LocalNetwork, arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run Python with the network's address and key; asserts that it succeeds."""
    profile = network.profile
    environment = {
        **os.environ,
        "PLAIT_ADDRESS": profile.address,
        "PLAIT_API_KEY": profile.api_key,
        "PLAIT_CA": profile.ca_pem,
        "PLAIT_HTTP": profile.http_url,
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
