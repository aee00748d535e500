"""Real engines over three nodes: guesses make answers quicker, never other answers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.in_process import SmallNetwork, small_network

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NUM_TOKENS = 100
PROMPT = [*range(60, 90), *range(60, 75)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallNetwork]:
    async with small_network(tmp_path_factory.mktemp("guessing"), num_nodes=3) as network:
        yield network


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 5, "top_p": 0.9, "top_logprobs": 2},
        {"temperature": 0.4, "seed": 6, "presence_penalty": 0.6, "repetition_penalty": 1.2},
        {"temperature": 0.3, "seed": 7, "response_format": {"type": "regex", "pattern": "(ab|c)+"}},
    ],
)
async def test_answers_are_the_same(network: SmallNetwork, options: dict[str, Any]) -> None:
    async with network.client() as client:
        plain = await client.generate(PROMPT, max_tokens=NUM_TOKENS, draft_tokens=0, **options)
        guessed = await client.generate(PROMPT, max_tokens=NUM_TOKENS, **options)
    assert guessed.token_ids == plain.token_ids
    assert guessed.finish_reason == plain.finish_reason
    assert [score.token_id for score in guessed.scores] == [s.token_id for s in plain.scores]


async def test_guesses_save_steps_and_all_slots_come_back(network: SmallNetwork) -> None:
    """A greedy answer of the tiny model goes round in circles."""
    engines = [node.engine for node in network.nodes.values()]
    before = [engine.stats().steps_total for engine in engines]
    async with network.client() as client:
        answer = await client.generate(PROMPT, max_tokens=NUM_TOKENS, temperature=0.0)
    steps = [engine.stats().steps_total - b for engine, b in zip(engines, before, strict=True)]
    assert answer.completion_tokens == NUM_TOKENS and max(steps) < NUM_TOKENS
    assert [engine.stats().kv_tokens_reserved for engine in engines] == [0, 0, 0]
