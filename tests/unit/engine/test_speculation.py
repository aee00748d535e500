"""Guesses change no answer: what is drawn with them is what is drawn without, token for token."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch

from node.engine.distribution import distribution
from node.engine.grammar import GRAMMAR_FAULT
from node.engine.sampler import Drawn, SequenceSampler
from node.engine.speculation import Check, draw_checked
from plait.errors import InvalidRequestError
from plait.types import Constraint, Reason, SamplingParams
from tests.unit.engine.test_grammar import (
    EOS,
    PAIR,
    VOCAB_SIZE,
    VOCABULARY,
    compiler,
    generate,
    regex,
)

VOCAB = 12
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=3),
    SamplingParams(seed=4, temperature=1.4, top_k=5, top_p=0.8, min_p=0.05),
    SamplingParams(seed=5, repetition_penalty=1.6, frequency_penalty=0.7, presence_penalty=0.4),
    SamplingParams(temperature=0.0, frequency_penalty=0.9, top_logprobs=2),
    SamplingParams(seed=6, logit_bias=((3, 2.0), (7, -9.0)), top_logprobs=0),
]


def logits_after(ids: Sequence[int], vocab: int = VOCAB) -> torch.Tensor:
    """A model that looks at all in front."""
    seed = hashlib.sha256(repr(list(ids)).encode()).digest()[:4]
    generator = torch.Generator().manual_seed(int.from_bytes(seed, "big"))
    return torch.randn(vocab, generator=generator) * 2


def plain(params: SamplingParams, prompt: list[int], count: int) -> list[Drawn]:
    """One token after the other."""
    sampler = SequenceSampler(params, sorted(set(prompt)))
    ids, drawn = list(prompt), []
    for _ in range(count):
        drawn.append(sampler.draw(logits_after(ids), len(ids)))
        ids.append(drawn[-1].token_id)
    return drawn


class Guessing:
    """One sequence whose next tokens are guessed, rightly or wrongly."""

    def __init__(
        self, params: SamplingParams, prompt: list[int], answer: list[int], seed: int
    ) -> None:
        self.sampler = SequenceSampler(params, sorted(set(prompt)))
        self.ids = list(prompt)
        self.drawn: list[Drawn] = []
        self._answer = answer
        self._random = random.Random(seed)

    def rows(self) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """Logits of the next row and of those behind it, and the guesses these are for."""
        at = len(self.drawn)
        count = self._random.randint(0, 5)
        guesses = [
            token if self._random.random() < 0.7 else self._random.randrange(VOCAB)
            for token in self._answer[at : at + count]
        ]
        rows = [logits_after(self.ids + guesses[:n]) for n in range(len(guesses) + 1)]
        return rows, tuple(guesses)

    def take(self, drawn: list[Drawn] | Reason) -> int:
        """How many guesses were right."""
        assert not isinstance(drawn, Reason)
        self.drawn += drawn
        self.ids += [token.token_id for token in drawn]
        return len(drawn) - 1


@pytest.mark.parametrize("seed", range(8))
def test_the_answer_is_the_same_to_the_last_token(seed: int) -> None:
    """All kinds of parameters side by side in the same steps, logprobs too."""
    expected = [plain(params, [1, 2 + seed % 5, 1], 40) for params in PARAMS]
    stories = [
        Guessing(params, [1, 2 + seed % 5, 1], [t.token_id for t in answer], 100 * seed + number)
        for number, (params, answer) in enumerate(zip(PARAMS, expected, strict=True))
    ]
    num_steps = num_right = 0
    while min(len(story.drawn) for story in stories) < 30:
        rows: list[torch.Tensor] = []
        checks: list[Check] = []
        for story in stories:
            own, guesses = story.rows()
            checks.append(Check(story.sampler, len(rows), len(story.ids), guesses))
            rows += own
        for story, drawn in zip(stories, draw_checked(torch.stack(rows), checks), strict=True):
            num_right += story.take(drawn)
            num_steps += 1
    for story, answer in zip(stories, expected, strict=True):
        assert story.drawn[:30] == answer[:30]
    assert num_right > num_steps // 2, "guesses were right now and then"


@pytest.mark.slow
def test_with_guesses_tokens_are_distributed_as_without() -> None:
    """Chi-square over pairs of tokens, where the likeliest token is always guessed."""
    num_draws, vocab = 3000, 4
    after = [logits_after([token], vocab) for token in range(vocab)]
    first = logits_after([99], vocab)
    params = SamplingParams(temperature=0.9)
    guess = int(first.argmax())
    counts: Counter[tuple[int, int]] = Counter()
    for seed in range(num_draws):
        sampler = SequenceSampler(SamplingParams(temperature=0.9, seed=seed))
        check = Check(sampler, 0, 7, (guess,))
        (drawn,) = draw_checked(torch.stack([first, after[guess]]), [check])
        assert not isinstance(drawn, Reason)
        ids = [token.token_id for token in drawn]
        if len(ids) == 1:  # wrong: the next step draws by itself
            ids.append(sampler.draw(after[ids[0]], 8).token_id)
        counts[ids[0], ids[1]] += 1
    chances = distribution(first, params)
    chi_square = 0.0
    for one in range(vocab):
        for two in range(vocab):
            expected = num_draws * float(chances[one] * distribution(after[one], params)[two])
            chi_square += (counts[one, two] - expected) ** 2 / expected
    assert chi_square < 37.7, "15 degrees of freedom: once in 1000 tests"


def test_a_wrong_guess_is_noticed_by_the_chi_square() -> None:
    """The same sum for who takes every guess: the test above could fail."""
    first = logits_after([99], 4)
    chances = distribution(first, SamplingParams(temperature=0.9))
    expected = [3000 * float(chance) for chance in chances]
    guess = int(first.argmax())
    counts = [3000 * (token == guess) for token in range(4)]
    pairs = zip(counts, expected, strict=True)
    assert sum((got - want) ** 2 / want for got, want in pairs) > 37.7


def follow(sampler: SequenceSampler, wrong: Callable[[int], bool]) -> bytes:
    """A constrained answer, guessed from the one that `test_grammar.generate` gives."""
    text, position = b"", 0
    plain_text = generate(_constrained(PAIR), seed=7)
    answer = [*_ids(plain_text), EOS]
    while position < len(answer):
        guesses = tuple(65 if wrong(at) else answer[at] for at in range(position, len(answer) - 1))
        guesses = guesses[:3]
        rows = [_row(position + n) for n in range(len(guesses) + 1)]
        (drawn,) = draw_checked(torch.stack(rows), [Check(sampler, 0, position, guesses)])
        assert not isinstance(drawn, Reason)
        for token in drawn:
            position += 1
            if token.token_id == EOS:
                return text
            text += _piece(token.token_id)
    return text


def _row(position: int) -> torch.Tensor:
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(7 * 999 + position))


def _constrained(constraint: Constraint) -> SequenceSampler:
    sampler = SequenceSampler(SamplingParams(seed=1, constraint=constraint))
    sampler.grammar = compiler().grammar(constraint, [])
    return sampler


def _ids(text: bytes) -> list[int]:
    sampler, ids = _constrained(PAIR), []
    for position in range(200):
        token_id = sampler.draw(_row(position), position).token_id
        if token_id == EOS:
            break
        ids.append(token_id)
    assert b"".join(map(_piece, ids)) == text
    return ids


def _piece(token_id: int) -> bytes:
    return VOCABULARY.pieces[token_id]


@pytest.mark.parametrize("every", [2, 3, 1000])
def test_a_grammar_follows_what_is_drawn_and_nothing_else(every: int) -> None:
    text = follow(_constrained(PAIR), lambda at: at % every == 1)
    assert text == generate(_constrained(PAIR), seed=7)


def test_a_grammar_that_fails_behind_a_right_guess_costs_nothing_that_was_right() -> None:
    sampler = _constrained(regex("ab"))
    rows = torch.zeros(3, VOCAB_SIZE)
    rows[0, ord("a")] = rows[1, ord("b")] = 9.0
    sampler.params = SamplingParams(temperature=0.0, constraint=sampler.params.constraint)
    check = Check(sampler, 0, 0, (ord("a"), ord("b")))
    (drawn,) = draw_checked(rows, [check])
    assert not isinstance(drawn, Reason)
    assert [token.token_id for token in drawn[:2]] == [ord("a"), ord("b")]


class Stuck:
    """A grammar that gives up after so many tokens."""

    def __init__(self, after: int) -> None:
        self.left = after

    def fill(self, mask: torch.Tensor) -> None:
        mask.fill_(-1)
        self.left -= 1
        if self.left < 0:
            raise InvalidRequestError("stuck", reason=GRAMMAR_FAULT)

    def accept(self, token_id: int) -> None:
        pass


@pytest.mark.parametrize(("after", "count"), [(0, None), (1, 1), (2, 2)])
def test_what_came_before_a_fault_counts(after: int, count: int | None) -> None:
    sampler = SequenceSampler(SamplingParams(temperature=0.0, constraint=regex("a*")))
    sampler.grammar = Stuck(after)  # type: ignore[assignment]
    rows = torch.zeros(3, 300)
    rows[:, 97] = 9.0
    (drawn,) = draw_checked(rows, [Check(sampler, 0, 0, (97, 97))])
    if count is None:
        assert isinstance(drawn, Reason) and drawn.code == GRAMMAR_FAULT
    else:
        assert not isinstance(drawn, Reason) and len(drawn) == count
