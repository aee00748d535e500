"""Rings whose first stage guesses: the answers are those of rings that do not."""

import random
from collections.abc import Sequence

import pytest

from node.core.messages import StageOpen
from node.core.speculation import Proposer
from node.core.state import Limits
from plait.types import FinishReason, LayerSpan
from tests.unit.node.fake_engine import expected_tokens, tiny_spec
from tests.unit.node.ring import Ring, ring, until

LIMITS = Limits(drafts_max=15)


class Oracle:
    """Knows the answer, and is wrong now and then."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def begin(self, opened: StageOpen, prompt: Sequence[int]) -> Proposer:
        spec = tiny_spec(6)
        return Guesses(expected_tokens(list(prompt), opened.max_new_tokens, spec), self._random)


class Guesses:
    def __init__(self, answer: list[int], source: random.Random) -> None:
        self._answer = answer
        self._random = source
        self._num_drawn = 0

    def drew(self, token_ids: Sequence[int], now_ms: int) -> None:
        end = self._num_drawn + len(token_ids)
        assert self._answer[self._num_drawn : end] == list(token_ids)
        self._num_drawn = end

    def propose(self, most: int, num_sharing: int, now_ms: int) -> tuple[int, ...]:
        count = self._random.randint(0, most)
        return tuple(
            token if self._random.random() < 0.8 else self._random.randrange(1000)
            for token in self._answer[self._num_drawn : self._num_drawn + count]
        )


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
async def test_answers_are_the_same_with_guesses(num_nodes: int) -> None:
    async with ring(num_nodes, limits=LIMITS, proposers=Oracle(num_nodes)) as made:
        prompts = {f"r{i}": list(range(i + 1, i + 30)) for i in range(6)}
        for name, prompt in prompts.items():
            await made.start(name, prompt, max_new_tokens=70)
        for name, prompt in prompts.items():
            await until(lambda name=name: made.gateway.finish(name) is not None)  # type: ignore[misc]
            assert made.gateway.tokens(name) == expected_tokens(prompt, 70, made.spec)
            assert made.gateway.finish(name) is FinishReason.LENGTH
        counters = made.nodes[0].runtime.core.counters
        assert 0 < counters.drafts_accepted < counters.tokens_drafted
        assert all(kit.runtime.core.counters.frames_dropped == 0 for kit in made.nodes)
        await until(made.is_free, limit_s=1.0, what="KV given back")


async def test_a_stop_among_right_guesses_ends_the_request() -> None:
    async with ring(3, limits=LIMITS, proposers=Oracle(5)) as made:
        tokens = expected_tokens([1, 2, 3], 60, made.spec)
        end = next(at for at, token in enumerate(tokens) if at > 30 and token not in tokens[:at])
        await made.start("r1", [1, 2, 3], max_new_tokens=60, stop_token_ids=[tokens[end]])
        await until(lambda: made.gateway.finish("r1") is not None)
        assert made.gateway.finish("r1") is FinishReason.STOP
        assert made.gateway.tokens("r1") == tokens[: end + 1]
        await until(made.is_free, limit_s=1.0)


async def test_blocks_of_guessed_tokens_are_found_by_whoever_goes_on() -> None:
    """A second turn finds the first one's answer in every stage's cache."""
    async with ring(3, limits=LIMITS, proposers=Oracle(9)) as made:
        prompt = list(range(1, 30))
        ticket = made.ticket("r1", kv_tokens=256, cache_salt=b"salt")
        await made.start("r1", prompt, max_new_tokens=100, ticket=ticket)
        await until(lambda: made.gateway.finish("r1") is not None)
        again = prompt + made.gateway.tokens("r1")
        before = [kit.engine.num_rows for kit in made.nodes]
        ticket = made.ticket("r2", kv_tokens=256, cache_salt=b"salt")
        await made.start("r2", again, max_new_tokens=1, ticket=ticket)
        await until(lambda: made.gateway.finish("r2") is not None)
        assert made.gateway.tokens("r2") == expected_tokens(again, 1, made.spec)
        ran = [kit.engine.num_rows - rows for kit, rows in zip(made.nodes, before, strict=True)]
        assert ran == [len(again) - 128] * 3, "8 blocks of 16: all but the end"


async def test_nobody_guesses_where_one_stage_does_not() -> None:
    made = Ring(tiny_spec(6))
    await made.gateway.start()
    try:
        first = await made.add("n0", LayerSpan(0, 3), limits=LIMITS, proposers=Oracle(5))
        await made.add("n1", LayerSpan(3, 6))
        await made.start("r1", [1, 2, 3], max_new_tokens=20)
        await until(lambda: made.gateway.finish("r1") is not None)
        assert made.gateway.tokens("r1") == expected_tokens([1, 2, 3], 20, made.spec)
        assert first.runtime.core.counters.tokens_drafted == 0
    finally:
        for kit in made.nodes:
            await kit.kill()
        await made.gateway.stop()
