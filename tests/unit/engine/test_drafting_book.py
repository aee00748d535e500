"""What the draft model has read, guesses and runs next, held against a naive twin."""

import random

import pytest

from node.core.effects import Draft
from node.core.events import Drafted
from node.engine.drafting_book import CHUNK_TOKENS, SEQUENCES_MAX, DraftBook
from plait.types import RequestId, SamplingParams


def order(
    start: int,
    *token_ids: int,
    count: int = 3,
    name: str = "a",
    epoch: int = 1,
    is_waited: bool = True,
    kv_tokens: int = 300,
) -> Draft:
    return Draft(
        request_id=RequestId(name),
        epoch=epoch,
        start=start,
        token_ids=token_ids,
        count=count,
        is_waited=is_waited,
        kv_tokens=kv_tokens,
        sampling=SamplingParams(temperature=0.0),
    )


def after(ids: list[int]) -> int:
    """The model: what comes behind these tokens."""
    return hash(tuple(ids)) % 5


class Engine:
    """Runs steps of a book on what really lies in each sequence's slots."""

    def __init__(self, num_slots: int = 4_096) -> None:
        self.book = DraftBook(num_slots, num_slots)
        self.slots: dict[str, list[int]] = {}
        self.told: list[Drafted] = []
        self.num_steps = 0

    def take(self, given: Draft) -> None:
        self.told += self.book.take(given)

    def step(self) -> list[str]:
        stepping = self.book.next_step()
        names = [str(sequence.key) for sequence in stepping]
        for sequence in stepping:
            rows, is_guess = sequence.rows()
            if not self.book.make_room(sequence, sequence.num_run + len(rows)):
                continue
            kept = self.slots.get(sequence.key, [])[: sequence.num_run]
            assert len(kept) == sequence.num_run, "rows run on what was never run"
            ran = self.slots[sequence.key] = kept + rows
            assert ran == (sequence.ids + sequence.guesses)[: len(ran)]
            self.book.ran(sequence, len(rows), after(ran) if is_guess else None, 1.0)
        self.told += self.book.answers(stepping)
        self.book.check()
        self.num_steps += 1
        return names

    def run(self) -> None:
        while self.book.next_step():
            self.step()


def guessed(ids: list[int], count: int) -> tuple[int, ...]:
    ids = list(ids)
    for _ in range(count):
        ids.append(after(ids))
    return tuple(ids[-count:])


@pytest.mark.parametrize("seed", range(20))
def test_guesses_are_the_models_whatever_came_before(seed: int) -> None:
    """Right and wrong guesses, prompts longer than a step, answers that were made ahead."""
    source = random.Random(seed)
    engine = Engine()
    ids = [source.randrange(5) for _ in range(source.choice((3, CHUNK_TOKENS, 200)))]
    untold = list(ids)
    for _ in range(12):
        count = source.randint(1, 6)
        engine.take(order(len(ids) - len(untold), *untold, count=count, kv_tokens=900))
        for _ in range(source.randint(0, 20)):
            engine.step()
        while not engine.told:
            engine.step()
        (answer,) = engine.told
        engine.told = []
        assert answer.token_ids == guessed(ids, count)
        untold = [*answer.token_ids[: source.randint(0, count)], source.randrange(5)]
        ids += untold


def test_guesses_made_ahead_are_told_at_once() -> None:
    engine = Engine()
    engine.take(order(0, 1, 2, count=2))
    engine.run()
    (first,) = engine.told
    steps, ahead = engine.num_steps, guessed([1, 2], 5)
    engine.take(order(2, *ahead[:3], count=2))
    assert engine.told[1].token_ids == ahead[3:] and engine.num_steps == steps
    assert first.token_ids == ahead[:2] and engine.told[1].step_ms == 0.0


def test_rows_that_wait_come_first_and_together_and_prompts_one_by_one() -> None:
    engine = Engine()
    engine.take(order(0, *range(200), name="long", is_waited=False))
    engine.take(order(0, 1, name="a"))
    engine.take(order(0, 2, name="b"))
    assert engine.step() == ["a", "b"]
    engine.run()
    assert sorted(a.request_id for a in engine.told) == ["a", "b", "long"]


def test_nobody_is_told_of_guesses_that_nobody_asked_for() -> None:
    engine = Engine()
    engine.take(order(0, 1, count=4, is_waited=False))
    engine.run()
    assert engine.num_steps == 4, "what is not waited for is not guessed ahead of"


def test_no_guess_goes_beyond_the_sequences_end() -> None:
    engine = Engine()
    engine.take(order(0, 1, 2, count=5, kv_tokens=4))
    engine.run()
    assert [len(answer.token_ids) for answer in engine.told] == [2]


def test_who_finds_no_room_hears_that_there_is_nothing_and_holds_nothing() -> None:
    engine = Engine(num_slots=64)
    engine.take(order(0, *range(40), name="a"))
    engine.run()
    engine.told = []
    engine.take(order(0, *range(40), name="b"))
    (sequence,) = engine.book.next_step()
    assert not engine.book.make_room(sequence, 40)
    engine.book.close(RequestId("a"), 1)
    assert (engine.book.num_sequences, engine.book.blocks_used) == (0, 0)


@pytest.mark.parametrize(
    "given", [order(3, 1), order(0, *range(5_000)), order(0, 1, epoch=1, name="old")]
)
def test_orders_that_do_not_fit_are_answered_with_nothing(given: Draft) -> None:
    engine = Engine()
    engine.take(order(0, 1, 2, name="old", epoch=2))
    engine.take(given)
    assert [answer.token_ids for answer in engine.told] == [()]


def test_a_gap_ends_the_sequence() -> None:
    engine = Engine()
    engine.take(order(0, 1, 2))
    engine.take(order(7, 1))
    assert engine.told[-1].token_ids == () and engine.book.num_sequences == 0


def test_a_later_attempt_takes_the_place_of_an_earlier_one() -> None:
    engine = Engine()
    engine.take(order(0, 1, 2))
    engine.run()
    engine.take(order(0, 9, 9, epoch=2, count=1))
    engine.run()
    assert engine.told[-1] == Drafted(RequestId("a"), 2, guessed([9, 9], 1), 1.0)
    engine.book.close(RequestId("a"), 1)
    assert engine.book.num_sequences == 1, "a late end of the earlier one"
    engine.book.close(RequestId("a"), 2)
    engine.book.check()


def test_sequences_are_bounded() -> None:
    engine = Engine()
    for number in range(SEQUENCES_MAX + 1):
        engine.take(order(0, 1, name=f"r{number}"))
    assert engine.book.num_sequences == SEQUENCES_MAX
    assert engine.told == [Drafted(RequestId(f"r{SEQUENCES_MAX}"), 1, ())]
