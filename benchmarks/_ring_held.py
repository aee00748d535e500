"""The simulator's word on a real three-node ring, held against what clients see.

Each round is predicted by the lone requests of its own and of the next one, which stand before and
after it: a machine that others use is another one a minute later. Of the rounds' errors the median
counts.
"""

import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks._ring_forecast import Fit, answers_of, fit, forecast
from benchmarks._ring_rounds import (
    NUM_REQUESTS,
    PROMPT_TOKENS,
    Asker,
    Round,
    running_ring,
    tokens_per_s,
    ttft_s,
)
from coordinator.core.view import NetworkView
from plait.cli.local_network import LocalNetwork
from plait.models import load_spec, pull, resolve
from plait.types import ModelSpec

MODEL: Final = "smollm2-135m-instruct"
SEED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Prediction and truth for so many requests at once: medians over the rounds; each error is
    the median of the rounds' own, `*_spread` half the distance between its quartiles."""

    num_requests: int
    tokens_per_s: float
    predicted_tokens_per_s: float
    rate_error: float
    rate_spread: float
    ttft_s: float
    predicted_ttft_s: float
    ttft_error: float
    ttft_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """What a ring was held to, what by, and how busy the machine was beside."""

    held: tuple[Held, ...]
    fit: Fit
    load: float
    num_cores: int


def hold_against_ring(*, rounds: int, new_tokens: int) -> Ring:
    """Predictions against `rounds` of real requests."""
    spec = load_spec(pull(resolve(MODEL)))
    with running_ring(spec) as network:
        seen = asyncio.run(_ask(network, spec, rounds, new_tokens))
        return hold(network.view(), spec, seen, new_tokens=new_tokens)


async def _ask(network: LocalNetwork, spec: ModelSpec, rounds: int, new_tokens: int) -> list[Round]:
    asker = Asker(network, spec, seed=SEED)
    try:
        await asker.warm_up()
        return [await asker.round(new_tokens) for _ in range(rounds)]
    finally:
        await asker.close()


def hold(view: NetworkView, spec: ModelSpec, rounds: Sequence[Round], *, new_tokens: int) -> Ring:
    """Each round against what the simulator makes of its calibration."""
    fits = [fit(view, spec, rounds[at : at + 2]) for at in range(len(rounds))]
    held: list[Held] = []
    for count in NUM_REQUESTS:
        rates: list[tuple[float, float]] = []
        waits: list[tuple[float, float]] = []
        for by, one in zip(fits, rounds, strict=True):
            outcomes = forecast(
                view,
                spec,
                by,
                num_requests=count,
                prompt_tokens=PROMPT_TOKENS,
                new_tokens=new_tokens,
            )
            predicted, seen = answers_of(outcomes), one.bursts[count]
            rates.append((tokens_per_s(predicted), tokens_per_s(seen)))
            waits.append((ttft_s(predicted), ttft_s(seen)))
        rate_error, rate_spread = _error(rates)
        ttft_error, ttft_spread = _error(waits)
        held.append(
            Held(
                num_requests=count,
                predicted_tokens_per_s=statistics.median(pair[0] for pair in rates),
                tokens_per_s=statistics.median(pair[1] for pair in rates),
                rate_error=rate_error,
                rate_spread=rate_spread,
                predicted_ttft_s=statistics.median(pair[0] for pair in waits),
                ttft_s=statistics.median(pair[1] for pair in waits),
                ttft_error=ttft_error,
                ttft_spread=ttft_spread,
            )
        )
    load = statistics.median(one.load for one in rounds)
    return Ring(
        held=tuple(held), fit=fit(view, spec, rounds), load=load, num_cores=os.cpu_count() or 1
    )


def _error(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """By how much predictions are above (or, negative, below) what was seen, and how unsure that
    is."""
    errors = [predicted / seen - 1.0 for predicted, seen in pairs]
    if len(errors) < 2:
        return errors[0], 0.0
    low, middle, high = statistics.quantiles(errors, n=4, method="inclusive")
    return middle, (high - low) / 2
