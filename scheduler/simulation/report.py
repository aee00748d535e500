"""What came of a run: rates, waits, and a digest that two equal runs share."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.simulation.trace import Arrival

GOOD_TTFT_S: Final = 5.0
GOOD_TPOT_S: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request. `first_s`, `last_s`: when its tokens were seen at the gateway."""

    number: int
    arrival: Arrival
    is_finished: bool
    num_generated: int
    num_attempts: int
    first_s: float | None
    last_s: float

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to first token."""
        return self.first_s - self.arrival.at_s if self.first_s is not None else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None for answers of one."""
        if self.first_s is None or not self.is_finished or self.num_generated < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_generated - 1)

    @property
    def is_good(self) -> bool:
        """Finished, with TTFT and TPOT as people want them."""
        ttft_s, tpot_s = self.ttft_s, self.tpot_s
        return (
            self.is_finished
            and ttft_s is not None
            and ttft_s <= GOOD_TTFT_S
            and (tpot_s is None or tpot_s <= GOOD_TPOT_S)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures of one run; percentiles are (p50, p95, p99) over finished requests, seconds."""

    num_requests: int
    num_finished: int
    num_failed: int
    num_good: int
    num_rerouted: int
    requests_per_s: float
    goodput_per_s: float
    tokens_per_s: float
    ttft_s: tuple[float, float, float]
    tpot_s: tuple[float, float, float]
    digest: str


def summarise(outcomes: Sequence[Outcome], *, duration_s: float) -> Report:
    """Rates are over the first `duration_s`, while requests come; `num_good` counts all."""
    finished = [o for o in outcomes if o.is_finished]
    num_good = sum(o.is_good for o in outcomes)
    return Report(
        num_requests=len(outcomes),
        num_finished=len(finished),
        num_failed=len(outcomes) - len(finished),
        num_good=num_good,
        num_rerouted=sum(o.num_attempts > 1 for o in outcomes),
        requests_per_s=sum(o.last_s <= duration_s for o in finished) / duration_s,
        goodput_per_s=num_good / duration_s,
        tokens_per_s=sum(_tokens_by(o, duration_s) for o in outcomes) / duration_s,
        ttft_s=_percentiles([o.ttft_s for o in finished if o.ttft_s is not None]),
        tpot_s=_percentiles([o.tpot_s for o in finished if o.tpot_s is not None]),
        digest=_digest(outcomes),
    )


def _tokens_by(outcome: Outcome, at_s: float) -> float:
    """Tokens seen by then, taken to have come evenly."""
    if outcome.first_s is None or outcome.first_s > at_s:
        return 0.0
    span_s = outcome.last_s - outcome.first_s
    if outcome.last_s <= at_s or span_s <= 0.0:
        return float(outcome.num_generated)
    return 1.0 + (outcome.num_generated - 1) * (at_s - outcome.first_s) / span_s


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all do not exceed; NaN where there is none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    return percentile(values, 0.5), percentile(values, 0.95), percentile(values, 0.99)


def _digest(outcomes: Sequence[Outcome]) -> str:
    lines = (
        f"{o.number} {o.is_finished} {o.num_generated} {o.num_attempts} {o.first_s!r} {o.last_s!r}"
        for o in outcomes
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
