"""Guesses that another model drew with the same numbers: the answer's distribution stays its own,
though guess and draw hang together, and more guesses are right than of its likeliest tokens."""

from collections import Counter

import pytest
import torch

from node.engine.distribution import distribution
from node.engine.drafting import drawing
from node.engine.sampler import SequenceSampler
from node.engine.speculation import Check, draw_checked
from plait.types import Reason, SamplingParams
from tests.unit.engine.test_speculation import logits_after

VOCAB = 4
NUM_DRAWS = 1200
HEAT = 0.9
FIRST = logits_after([99], VOCAB)
AFTER = [logits_after([token], VOCAB) for token in range(VOCAB)]


def drafts(logits: torch.Tensor) -> torch.Tensor:
    """The same scores as a smaller model sees them: other ones, not far off."""
    return logits * 0.7 + torch.tensor([0.3, -0.2, 0.1, -0.1])


def guess(params: SamplingParams, logits: torch.Tensor, position: int) -> int:
    return SequenceSampler(drawing(params)).draw(drafts(logits), position).token_id


def draw_pairs(num_draws: int) -> tuple[Counter[tuple[int, int]], int]:
    """Pairs of tokens drawn with two guesses before them, and how many first guesses were right."""
    counts: Counter[tuple[int, int]] = Counter()
    num_right = 0
    for seed in range(num_draws):
        params = SamplingParams(temperature=HEAT, seed=seed)
        one = guess(params, FIRST, 7)
        two = guess(params, AFTER[one], 8)
        rows = torch.stack([FIRST, AFTER[one], AFTER[two]])
        sampler = SequenceSampler(params)
        (drawn,) = draw_checked(rows, [Check(sampler, 0, 7, (one, two))])
        assert not isinstance(drawn, Reason)
        ids = [token.token_id for token in drawn]
        num_right += len(ids) > 1
        if len(ids) == 1:  # wrong: the next trip draws by itself
            ids.append(sampler.draw(AFTER[ids[0]], 8).token_id)
        counts[ids[0], ids[1]] += 1
    return counts, num_right


def chi_square(counts: Counter[tuple[int, int]], num_draws: int) -> float:
    params = SamplingParams(temperature=HEAT)
    chances = distribution(FIRST, params)
    total = 0.0
    for one in range(VOCAB):
        for two in range(VOCAB):
            chance = float(chances[one] * distribution(AFTER[one], params)[two])
            expected = num_draws * chance
            total += (counts[one, two] - expected) ** 2 / expected
    return total


@pytest.mark.slow
def test_tokens_are_distributed_as_without_a_draft_model() -> None:
    counts, num_right = draw_pairs(NUM_DRAWS)
    assert chi_square(counts, NUM_DRAWS) < 37.7, "15 degrees of freedom: once in 1000 tests"
    likeliest = float(distribution(FIRST, SamplingParams(temperature=HEAT)).max())
    assert num_right / NUM_DRAWS > likeliest + 0.1


def test_the_draft_models_own_draws_would_be_noticed() -> None:
    counts: Counter[tuple[int, int]] = Counter()
    for seed in range(NUM_DRAWS):
        params = SamplingParams(temperature=HEAT, seed=seed)
        one = guess(params, FIRST, 7)
        counts[one, guess(params, AFTER[one], 8)] += 1
    assert chi_square(counts, NUM_DRAWS) > 37.7
