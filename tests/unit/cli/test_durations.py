"""Seconds from the command line."""

import math

import pytest

from plait.cli.durations import milliseconds
from plait.errors import ConfigError


def test_seconds_become_milliseconds() -> None:
    assert [milliseconds(value, flag="--x") for value in (0.0, 0.25, 3.0)] == [0, 250, 3_000]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 1e300])
def test_what_is_no_duration_names_its_flag(value: float) -> None:
    with pytest.raises(ConfigError, match="--x"):
        milliseconds(value, flag="--x")
