"""`--demand` and `--min-replicas`."""

import pytest

from coordinator.config import CoordinatorConfig, parse_counts, parse_weights
from plait.errors import ConfigError


def test_weights_are_read_by_name() -> None:
    assert parse_weights("a=2, org/b=0.5", flag="--demand") == (("a", 2.0), ("org/b", 0.5))
    assert parse_weights("", flag="--demand") == ()
    assert parse_counts("a=2", flag="--min-replicas") == (("a", 2),)


@pytest.mark.parametrize("text", ["a", "a=", "=2", "a=0", "a=-1", "a=nan", "a=inf", "a=b"])
def test_nonsense_is_refused_with_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--demand"):
        parse_weights(text, flag="--demand")


def test_only_models_that_are_served_can_be_named_and_once() -> None:
    with pytest.raises(ConfigError, match="whole numbers"):
        parse_counts("a=1.5", flag="--min-replicas")
    with pytest.raises(ConfigError, match="c is no --model; models: a, b"):
        CoordinatorConfig(models=("a", "b"), demand=(("c", 1.0),))
    with pytest.raises(ConfigError, match="--min-replicas: it names one model twice"):
        CoordinatorConfig(models=("a", "b"), replicas_min=(("a", 1), ("a", 2)))
