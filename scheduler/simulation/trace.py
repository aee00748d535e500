"""Requests to serve: lengths like a public conversation trace's, arrivals steady or in bursts."""

import math
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

PROMPT_MEDIAN: Final = 1_020.0
NEW_MEDIAN: Final = 129.0
"""Medians of the Azure conversation trace of November 2023 (Splitwise, Patel et al., ISCA 2024,
section III). The spread below is ours: it gives means near 1,200 and 210, as the trace shows."""
PROMPT_SIGMA: Final = 0.75
NEW_SIGMA: Final = 0.9
PROMPT_MAX: Final = 4_096
NEW_MAX: Final = 1_024
BURST_SHAPE: Final = 0.25
"""Gamma shape of bursty gaps: their coefficient of variation is 2."""


class Arrivals(StrEnum):
    """How requests come."""

    POISSON = "poisson"
    BURSTY = "bursty"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, its prompt, and how many tokens it will have generated."""

    at_s: float
    prompt_tokens: int
    new_tokens: int


def conversation(
    *, rate_per_s: float, duration_s: float, arrivals: Arrivals, seed: int
) -> tuple[Arrival, ...]:
    """`rate_per_s` requests on average for `duration_s`."""
    rng = Random(f"trace {seed}")
    shape = 1.0 if arrivals is Arrivals.POISSON else BURST_SHAPE
    found: list[Arrival] = []
    at_s = 0.0
    while True:
        at_s += rng.gammavariate(shape, 1.0 / (shape * rate_per_s))
        if at_s >= duration_s:
            return tuple(found)
        prompt = _length(rng, PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_MAX)
        found.append(Arrival(at_s, prompt, _length(rng, NEW_MEDIAN, NEW_SIGMA, NEW_MAX)))


def steady(
    *, num_requests: int, gap_s: float, prompt_tokens: int, new_tokens: int
) -> tuple[Arrival, ...]:
    """Equal requests, `gap_s` apart."""
    return tuple(Arrival(i * gap_s, prompt_tokens, new_tokens) for i in range(num_requests))


def _length(rng: Random, median: float, sigma: float, most: int) -> int:
    return max(1, min(most, round(rng.lognormvariate(math.log(median), sigma))))
