"""Requests that lose their KV while guesses are under way, on a ring of real engines whose caches
are too small for all: each draws what it draws alone, and nothing stays behind."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache

from node.core.messages import StageOpen
from node.core.speculation import Proposer
from node.core.state import Limits
from node.engine.runner import Runner
from plait.prefixes import BLOCK_TOKENS
from plait.types import LayerSpan, ModelSpec, RequestId, SamplingParams
from tests.kit.engine_ring import Asked, EngineRing, RingStage
from tests.unit.engine.kit import make_runner, tiny_model

NUM_STAGES = 3
NUM_NEW = 30
SEEDS = range(NUM_STAGES)
ENOUGH, ROOMY, TIGHT = 16, 9, 5
"""Blocks of a stage's cache; three requests want ten."""


class Guesses:
    """Knows what comes, and is wrong now and then."""

    def __init__(self, coming: Sequence[int], source: random.Random) -> None:
        self._coming = list(coming)
        self._random = source

    def drew(self, token_ids: Sequence[int], now_ms: int) -> None:
        assert self._coming[: len(token_ids)] == list(token_ids)
        del self._coming[: len(token_ids)]

    def propose(self, most: int, num_sharing: int, now_ms: int) -> tuple[int, ...]:
        count = self._random.randint(0, min(most, 6))
        return tuple(
            each if self._random.random() < 0.8 else self._random.randrange(90)
            for each in self._coming[:count]
        )


class Oracle:
    """A proposer for each attempt of a request, from where it goes on."""

    def __init__(self, answers: dict[str, list[int]], prompts: dict[str, int], seed: int) -> None:
        self._answers = answers
        self._prompts = prompts
        self._random = random.Random(seed)

    def begin(self, opened: StageOpen, prompt: Sequence[int]) -> Proposer:
        num_drawn = len(prompt) - self._prompts[opened.request_id]
        return Guesses(self._answers[opened.request_id][num_drawn:], self._random)


def requests() -> list[Asked]:
    """Three that each need more than half of a stage's blocks; two begin alike."""
    shared = list(range(5, 29))
    prompts = (shared, [*shared[:20], 80, 81], list(range(40, 57)))
    return [
        Asked(
            request_id=RequestId(f"r{number}"),
            prompt=tuple(prompt),
            num_new=NUM_NEW,
            sampling=SamplingParams(temperature=0.8, seed=number),
            admission=number + 1,
        )
        for number, prompt in enumerate(prompts)
    ]


@cache
def runners() -> list[tuple[ModelSpec, LayerSpan, Runner]]:
    model = tiny_model("llama")
    spans = [LayerSpan(at, at + 1) for at in range(NUM_STAGES)]
    slots = ENOUGH * BLOCK_TOKENS
    return [(model.spec, span, make_runner(model, span, num_slots=slots)) for span in spans]


def ring(blocks: Sequence[int], *, seed: int, oracle: Oracle | None) -> EngineRing:
    """A stage for each number of blocks."""
    held = zip(runners(), blocks, strict=True)
    stages = [RingStage(span, runner, num_blocks) for (_, span, runner), num_blocks in held]
    limits = Limits(drafts_max=8 if oracle is not None else 0, prefill_chunk_tokens=10)
    return EngineRing(runners()[0][0], stages, seed=seed, limits=limits, proposers=oracle)


@cache
def alone() -> dict[str, list[int]]:
    """What each draws without guesses, with room for all."""
    made, asked = ring([ENOUGH] * NUM_STAGES, seed=0, oracle=None), requests()
    made.run(asked)
    return {one.request_id: one.drawn for one in asked}


def test_who_loses_its_kv_while_guesses_are_under_way_draws_the_same() -> None:
    answers = alone()
    prompts = {str(one.request_id): len(one.prompt) for one in requests()}
    preempted: Counter[str] = Counter()
    where: set[int] = set()
    for seed in SEEDS:
        blocks = [TIGHT if at == seed % NUM_STAGES else ROOMY for at in range(NUM_STAGES)]
        made = ring(blocks, seed=seed, oracle=Oracle(answers, prompts, seed))
        asked = requests()
        made.run(asked)
        assert {one.request_id: one.drawn for one in asked} == answers
        assert asked[0].epoch == 1, "who came first gives nothing back"
        for at, node in enumerate(made.nodes):
            assert (node.core.num_sessions, node.batcher.kv_tokens_used) == (0, 0)
            node.batcher.check()
            assert node.core.counters.frames_malformed == 0
            preempted += node.preempted
            where |= {at} if node.preempted["guessing"] else set()
        counters = made.nodes[0].core.counters
        assert 0 < counters.drafts_accepted < counters.tokens_drafted
    assert preempted["guessing"] > 0 < preempted["plain"], "also while none was"
    assert where == {0, 1, 2}, "at every stage"
