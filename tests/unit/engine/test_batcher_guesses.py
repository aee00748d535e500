"""Rows with guesses in the batcher: they are one decode, stay together, and may be replaced."""

from dataclasses import replace

import pytest

from node.engine.batcher import Batcher
from node.engine.step_budget import StepBudget
from node.engine.step_meter import StepMeter
from node.ports import StageWork
from plait.errors import FrameError
from plait.prefixes import NAME_BYTES
from plait.types import RequestId
from tests.unit.engine.test_batcher import make_batcher, opened, work


def guessed(position: int, *drafted: int, sample: bool = True, name: str = "a") -> StageWork:
    ids = (1, *drafted)
    return StageWork(
        RequestId(name), 1, position, len(ids), token_ids=ids, sample=sample, drafted_ids=drafted
    )


def begun(num_tokens: int = 4) -> Batcher:
    """One sequence whose prompt has run."""
    batcher = make_batcher()
    batcher.open(opened())
    batcher.submit(work("a", 0, (1,) * num_tokens))
    while items := batcher.take():
        batcher.finished(items, [True] * len(items))
    return batcher


def step(batcher: Batcher) -> list[tuple[int, int]]:
    items = batcher.take(0)
    batcher.finished(items, [True] * len(items))
    return [(item.work.position, item.work.num_tokens) for item in items]


def test_guesses_go_along_with_their_row_beside_no_prompt_at_all() -> None:
    batcher = begun()
    batcher.submit(guessed(4, 7, 8))
    assert batcher.is_decode_ready
    (item,) = batcher.take(0, decodes_max=1)
    assert (item.work.num_tokens, item.work.drafted_ids) == (3, (7, 8))


@pytest.mark.parametrize("position", [5, 6, 7])
def test_what_comes_next_takes_the_place_of_guesses(position: int) -> None:
    batcher = begun()
    batcher.submit(guessed(4, 7, 8))
    assert step(batcher) == [(4, 3)]
    batcher.submit(guessed(position, 9))
    assert step(batcher) == [(position, 2)] and batcher.queue_tokens == 0


@pytest.mark.parametrize("position", [4, 8])
def test_and_of_nothing_else(position: int) -> None:
    batcher = begun()
    batcher.submit(guessed(4, 7, 8))
    step(batcher)
    with pytest.raises(FrameError, match="position 7 comes next"):
        batcher.submit(guessed(position))
    batcher.submit(guessed(6))
    with pytest.raises(FrameError):
        batcher.submit(guessed(6))


@pytest.mark.parametrize("bad", [guessed(4, 7, sample=False), guessed(4, *[7] * 16)])
def test_guesses_that_will_not_do(bad: StageWork) -> None:
    with pytest.raises(FrameError):
        begun().submit(bad)


def test_an_unknown_guess_is_refused() -> None:
    with pytest.raises(FrameError, match="guesses"):
        begun().submit(guessed(4, 1 << 20))


def test_works_that_overlap_are_run_one_by_one() -> None:
    """As only a stranger sends them: each step has one, whole."""
    batcher = begun()
    for late in (guessed(4, 7, 8), guessed(5), guessed(6)):
        batcher.submit(late)
    assert [step(batcher) for _ in range(4)] == [[(4, 3)], [(5, 1)], [(6, 1)], []]
    assert batcher.queue_tokens == 0


def test_a_block_is_found_when_its_guesses_are_none_any_more() -> None:
    batcher = begun(14)
    batcher.submit(guessed(14, 7, 8))
    step(batcher)
    name = b"n" * NAME_BYTES
    confirming = guessed(17, 9)
    confirming.block_name = name
    batcher.submit(confirming)
    step(batcher)
    batcher.close(RequestId("a"), 1)
    batcher.check()
    again = replace(opened("b"), prefix=(name,), cached_blocks=1)
    assert batcher.open(again) == 16


def test_they_count_as_decodes_where_steps_are_measured() -> None:
    batcher = begun()
    batcher.submit(guessed(4, *[7] * 15))
    items = batcher.take()
    meter, budget = StepMeter(), StepBudget()
    meter.record(items, 20.0)
    assert (meter.totals.decode_steps, meter.totals.decode_rows) == (1, 16)
    budget.record(items, 20.0)
    assert budget.prompt_rows_max(is_decoding=True, is_decode_ready=True) == 64, "no prompt ran"
