"""The sampler against naive twins, and against what it promises about seeds."""

import math
import random
from collections import Counter

import pytest
import torch

from node.engine.distribution import distribution, weights_of
from node.engine.philox import uniform
from node.engine.sampler import Drawn, SequenceSampler, draw_rows
from plait.types import SamplingParams

LOGITS = torch.randn(50, generator=torch.Generator().manual_seed(11)) * 2


def naive_distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """The definition, token by token."""
    scaled = [value / params.temperature for value in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if params.top_k:
        order = order[: params.top_k]
    peak = max(scaled)
    weights = {i: math.exp(scaled[i] - peak) for i in order}
    total = sum(weights.values())
    weights = {i: w / total for i, w in weights.items()}
    kept: dict[int, float] = {}
    reached = 0.0
    for i in order:
        if reached >= params.top_p and kept:
            break
        kept[i] = weights[i]
        reached += weights[i]
    likeliest = max(kept.values())
    kept = {i: w for i, w in kept.items() if w >= params.min_p * likeliest}
    total = sum(kept.values())
    return [kept.get(i, 0.0) / total for i in range(len(scaled))]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.3),
        SamplingParams(top_k=5),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.6),
        SamplingParams(top_p=1e-9),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=1.7, top_k=20, top_p=0.8, min_p=0.1),
        SamplingParams(top_k=1000),
    ],
)
def test_distribution_is_the_naive_one(params: SamplingParams) -> None:
    expected = torch.tensor(naive_distribution(LOGITS.tolist(), params), dtype=torch.float64)
    torch.testing.assert_close(distribution(LOGITS, params), expected, atol=1e-7, rtol=1e-5)


def test_nucleus_larger_than_the_probe_is_exact() -> None:
    flat = torch.randn(3000, generator=torch.Generator().manual_seed(2)) * 0.1
    params = SamplingParams(top_p=0.9)
    expected = torch.tensor(naive_distribution(flat.tolist(), params), dtype=torch.float64)
    got = distribution(flat, params)
    assert int((got > 0).sum()) == int((expected > 0).sum()) > 512
    torch.testing.assert_close(got, expected, atol=1e-7, rtol=1e-4)


def test_draws_follow_the_distribution() -> None:
    params = SamplingParams(temperature=0.8, top_k=6, seed=5)
    sampler = SequenceSampler(params)
    num_draws = 4000
    counts = Counter(sampler.draw(LOGITS, position).token_id for position in range(num_draws))
    expected = distribution(LOGITS, params)
    assert set(counts) <= set(expected.nonzero().flatten().tolist())
    chi_square = sum(
        (counts[i] - num_draws * p) ** 2 / (num_draws * p)
        for i, p in enumerate(expected.tolist())
        if p > 0
    )
    assert chi_square < 25  # 5 degrees of freedom: once in 7000 seeds


def test_a_draw_depends_on_seed_and_position_only() -> None:
    params = SamplingParams(seed=9, top_p=0.95)
    other = [torch.randn(50) for _ in range(3)]
    alone = SequenceSampler(params).draw(LOGITS, 17).token_id
    rows = torch.stack([other[0], LOGITS, other[1], other[2]])
    samplers = [
        SequenceSampler(SamplingParams(seed=1)),
        SequenceSampler(params),
        SequenceSampler(SamplingParams(temperature=0.0)),
        SequenceSampler(SamplingParams(seed=9, top_k=3)),
    ]
    assert draw_rows(rows, samplers, [3, 17, 99, 17])[1] == Drawn(alone, None, ())
    seeds = {SequenceSampler(SamplingParams(seed=s)).draw(LOGITS, 17).token_id for s in range(40)}
    positions = {SequenceSampler(params).draw(LOGITS, p).token_id for p in range(40)}
    assert len(seeds) > 3 and len(positions) > 3


def test_greedy_takes_the_likeliest() -> None:
    greedy = SequenceSampler(SamplingParams(temperature=0.0))
    rows = torch.stack([LOGITS, LOGITS.flip(0)])
    best: list[int] = rows.argmax(dim=-1).tolist()
    expected = [Drawn(token_id, None, ()) for token_id in best]
    assert draw_rows(rows, [greedy, greedy], [0, 0]) == expected


def naive_penalised(
    logits: list[float], params: SamplingParams, prompt: list[int], generated: list[int]
) -> list[float]:
    scores = list(logits)
    for token in set(prompt) | set(generated):
        old = scores[token]
        repetition = params.repetition_penalty
        scores[token] = old / repetition if old > 0 else old * repetition
    for token in set(generated):
        scores[token] -= generated.count(token) * params.frequency_penalty
        scores[token] -= params.presence_penalty
    return scores


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, presence_penalty=1.5),
        SamplingParams(temperature=0.0, frequency_penalty=0.7),
        SamplingParams(temperature=0.0, frequency_penalty=-0.4, presence_penalty=0.2),
        SamplingParams(temperature=0.0, repetition_penalty=1.8),
        SamplingParams(temperature=0.0, repetition_penalty=0.6, frequency_penalty=0.5),
    ],
)
def test_penalties_are_the_naive_ones(params: SamplingParams) -> None:
    prompt, generated = [4, 8, 8, 30], [int(LOGITS.argmax()), 8, 2]
    sampler = SequenceSampler(params, prompt, generated)
    for position in range(12):
        scores = naive_penalised(LOGITS.tolist(), params, prompt, generated)
        expected = max(range(len(scores)), key=lambda i: (scores[i], -i))
        token = sampler.draw(LOGITS, position).token_id
        assert token == expected
        generated.append(token)


def test_a_resumed_request_draws_what_it_would_have_drawn() -> None:
    params = SamplingParams(seed=3, frequency_penalty=0.8, presence_penalty=0.3)
    whole = SequenceSampler(params, [1, 2])
    drawn = [whole.draw(LOGITS, position).token_id for position in range(2, 22)]
    resumed = SequenceSampler(params, [1, 2], drawn[:9])
    assert [resumed.draw(LOGITS, p).token_id for p in range(11, 22)] == drawn[9:]


def test_logprobs_come_before_penalties_and_temperature() -> None:
    params = SamplingParams(temperature=0.1, presence_penalty=2.0, top_logprobs=3)
    drawn = SequenceSampler(params, (), [int(LOGITS.argmax())]).draw(LOGITS, 0)
    expected = torch.log_softmax(LOGITS, dim=-1)
    assert drawn.logprob == pytest.approx(float(expected[drawn.token_id]))
    assert [entry.token_id for entry in drawn.top_logprobs] == expected.topk(3).indices.tolist()
    chosen_only = SequenceSampler(SamplingParams(top_logprobs=0)).draw(LOGITS, 0)
    assert chosen_only.logprob is not None and chosen_only.top_logprobs == ()


def test_uniform_numbers_fill_the_unit_interval() -> None:
    numbers = torch.tensor([uniform(7, position) for position in range(2000)])
    assert float(numbers.min()) >= 0.0 and float(numbers.max()) < 1.0
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(numbers.std()) == pytest.approx(12**-0.5, abs=0.02)


def naive_draw(logits: torch.Tensor, params: SamplingParams, number: float) -> int:
    """One row by itself, with sorted tokens and a cumulative sum in the order of ids."""
    scaled = logits.double() / params.temperature
    if 0 < params.top_k < len(scaled):
        values, ids = (part[: params.top_k] for part in scaled.sort(descending=True, stable=True))
        scaled = torch.full_like(scaled, -torch.inf).scatter_(0, ids, values)
    weights = torch.softmax(scaled, dim=-1)
    if params.top_p < 1.0:
        values, ids = weights.sort(descending=True, stable=True)
        kept = values.cumsum(0) - values < params.top_p
        kept[0] = True
        weights = torch.zeros_like(weights).scatter_(0, ids[kept], values[kept])
    weights = weights.masked_fill(weights < params.min_p * weights.max(), 0.0)
    cumulative = weights.cumsum(0)
    index = int(torch.searchsorted(cumulative, number * float(cumulative[-1]), right=True))
    return index if index < len(weights) and weights[index] > 0 else int(weights.nonzero()[-1])


def test_a_batch_draws_what_each_row_draws_alone_bit_for_bit() -> None:
    rng = random.Random(8)
    for vocab, num_rows in ((50, 9), (3000, 8), (70_000, 3)):
        params = [
            SamplingParams(
                temperature=rng.choice([0.3, 1.0, 1.7]),
                top_k=rng.choice([0, 0, 7, 40]),
                top_p=rng.choice([1.0, 0.5, 0.9, 0.999]),
                min_p=rng.choice([0.0, 0.0, 0.1]),
                seed=rng.getrandbits(64),
            )
            for _ in range(num_rows)
        ]
        rows = torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
        rows[0] = rows[0].round()  # equal weights at the cuts
        together = weights_of(rows, params)
        for row, each in enumerate(params):
            assert torch.equal(together[row : row + 1], weights_of(rows[row : row + 1], [each]))
        for position in range(6):
            samplers = [SequenceSampler(each) for each in params]
            drawn = draw_rows(rows, samplers, [position] * num_rows)
            for row, (each, got) in enumerate(zip(params, drawn, strict=True)):
                assert isinstance(got, Drawn)
                expected = SequenceSampler(each).draw(rows[row], position)
                assert got == expected
                number = uniform(each.seed, position)
                assert got.token_id == naive_draw(rows[row], each, number)


def test_a_bias_is_added_once_and_bans_or_forces() -> None:
    best = int(LOGITS.argmax())
    banned = SamplingParams(temperature=0.0, logit_bias=((best, -100.0),), top_logprobs=1)
    drawn = SequenceSampler(banned).draw(LOGITS, 0)
    assert drawn.token_id == int(LOGITS.topk(2).indices[1])
    assert drawn.top_logprobs[0].token_id == best, "scores told are the model's own"
    forced = SamplingParams(logit_bias=((3, 100.0),), seed=4)
    assert {SequenceSampler(forced).draw(LOGITS, at).token_id for at in range(20)} == {3}
    scores = LOGITS.clone()
    both = SamplingParams(logit_bias=((5, 1.5),), presence_penalty=0.25)
    SequenceSampler(both, generated_ids=[5]).change(scores)
    assert float(scores[5] - LOGITS[5]) == pytest.approx(1.25)
    assert torch.equal(scores[6:], LOGITS[6:])
