"""Properties that the fast run tries on a few examples and the full run on many."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis.strategies import SearchStrategy


def few_and_many(
    few: int,
    many: int,
    *drawn: SearchStrategy[object],
    derandomize: bool = False,
    always: tuple[object, ...] = (),
    **named: SearchStrategy[object],
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """A decorator as `given`: the test runs with `few` examples where slow tests are left out, and
    else with `many`. `always` are examples of properties of one argument."""

    def decorate(holds: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize(
            "examples",
            [
                pytest.param(few, marks=pytest.mark.few),
                pytest.param(many, marks=pytest.mark.slow),
            ],
        )
        def test(examples: int) -> None:
            checked = given(*drawn, **named)(holds)
            for one in always:
                checked = example(one)(checked)
            settings(max_examples=examples, deadline=None, derandomize=derandomize)(checked)()

        test.__name__, test.__doc__ = holds.__name__, holds.__doc__
        return test

    return decorate
