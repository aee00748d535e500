"""When guesses may go along with a request that does not say."""

import pytest

from coordinator.gateway.order import Order, RawPrompt, drafts_of
from plait.types import SamplingParams


@pytest.mark.parametrize(
    ("seed", "temperature", "asked", "expected"),
    [
        (None, 1.0, None, None),
        (7, 0.0, None, None),
        (7, 1.0, None, 0),
        (7, 1.0, 3, 3),
        (None, 1.0, 0, 0),
    ],
)
def test_draws_that_are_to_come_again_are_not_guessed(
    seed: int | None, temperature: float, asked: int | None, expected: int | None
) -> None:
    order = Order(
        prompt=RawPrompt("x"),
        seed=seed,
        draft_tokens=asked,
        sampling=SamplingParams(temperature=temperature),
    )
    assert drafts_of(order) == expected
