"""Rows of prompts beside decodes: as many as double a step, measured, never fewer than sixteen."""

from node.engine.sequence import StepItem
from node.engine.step_budget import ROWS_MIN, StepBudget
from plait.types import LayerSpan
from tests.unit.engine.kit import ids_item, make_sequence


def items(*rows: int) -> list[StepItem]:
    span = LayerSpan(0, 1)
    return [ids_item(make_sequence(span), 0, [1] * count) for count in rows]


def told(
    budget: StepBudget, *, is_decoding: bool = True, is_decode_ready: bool = True
) -> int | None:
    return budget.prompt_rows_max(is_decoding=is_decoding, is_decode_ready=is_decode_ready)


def test_prompts_have_the_step_for_themselves_while_nobody_decodes() -> None:
    assert told(StepBudget(), is_decoding=False, is_decode_ready=False) is None


def test_prompts_may_double_a_step_of_decodes() -> None:
    budget = StepBudget()
    budget.record(items(100), 50.0)
    budget.record(items(1, 1), 20.0)
    assert told(budget) == 40
    budget.record(items(1, 40), 40.0)  # as predicted
    assert told(budget) == 40
    budget.record(items(1, 40), 120.0)  # prompts cost more than they did
    assert ROWS_MIN <= (told(budget) or 0) < 40


def test_before_anything_is_measured_a_guess_holds() -> None:
    assert told(StepBudget(rows_unknown=48)) == 48


def test_a_slow_prompt_still_moves() -> None:
    budget = StepBudget()
    budget.record(items(32), 3200.0)
    budget.record(items(1), 10.0)
    assert told(budget) == ROWS_MIN


def test_decodes_that_waited_for_a_step_of_prompts_go_alone() -> None:
    budget = StepBudget()
    budget.record(items(1), 10.0)
    budget.record(items(16), 10.0)
    assert told(budget) == 0
    assert told(budget, is_decode_ready=False) == 16
    budget.record(items(1), 10.0)
    assert told(budget) == 16
