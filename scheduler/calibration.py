"""Predictions held against what nodes report: how much slower or quicker each is than its figures.

A factor is the median of the last observed/predicted ratios: up to half of them may be arbitrarily
wrong without moving it beyond the others (breakdown point 1/2; Huber, Robust Statistics, 1981).
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from plait.types import LayerSpan, LayerTiming, ModelSpec, NodeProfile, StepTotals
from scheduler.cost import StageCost

WINDOW: Final = 15
"""Observations that are kept; nodes report about one a second while they work."""
SAMPLES_MIN: Final = 3
RATIO_MIN: Final = 0.1
RATIO_MAX: Final = 100.0
DEPARTURE: Final = 1.25
"""A factor so much below the one that a plan was made with calls for another plan."""
SLOWDOWN: Final = 1.0 / 0.85
"""And so much above; noise of 5 % in both is well below it."""
REST_MS: Final = 30_000
"""While nothing runs on a slow node, routes believe so often the square root of what was left."""
TRIALS_MAX: Final = 4
"""Each trial that shows it as slow as ever doubles that time, up to so many times."""
REST_CHANGE: Final = 0.01
NOTABLE: Final = 4.0 / 3.0
"""Routes are priced anew where a factor has changed by so much, or with any change in a rest: what
is left at its end is little, and yet more than chains may differ by to take turns."""


class Ratio:
    """Observed over predicted, of the last observations."""

    def __init__(self, prior: float = 1.0) -> None:
        """`prior` is believed until enough is known: what the device showed at other work."""
        self._prior = prior
        self._was_known = False
        self._samples: deque[float] = deque(maxlen=WINDOW)

    def add(self, predicted_ms: float, observed_ms: float) -> bool:
        """Take in one observation; nonsense is dropped (False)."""
        figures = (predicted_ms, observed_ms)
        if not all(math.isfinite(f) and f > 0.0 for f in figures):
            return False
        self._samples.append(min(RATIO_MAX, max(RATIO_MIN, observed_ms / predicted_ms)))
        return True

    @property
    def is_known(self) -> bool:
        """Whether there are enough observations to believe."""
        return len(self._samples) >= SAMPLES_MIN

    @property
    def factor(self) -> float:
        """What predictions are to be multiplied with, to three digits; the prior while too little
        is known."""
        return float(f"{statistics.median(self._samples):.3g}") if self.is_known else self._prior

    @property
    def error_percent(self) -> float | None:
        """How far the prediction is above (or, negative, below) what is observed."""
        return 100.0 * (1.0 / self.factor - 1.0) if self.is_known or self._was_known else None

    def start_anew(self) -> None:
        """The next few observations decide; what was believed is believed until then."""
        if self.is_known:
            self._prior, self._was_known = self.factor, True
            self._samples.clear()


@dataclass(slots=True)
class Calibration:
    """One node on one model. `planned` are the factors (decode, prefill) that plans were made
    with, `accepted` those of the last plan that could have moved the node, `departed_ms` since
    when the observed ones are far from these. `routed` are those that routes were last told of,
    `usual` the least that it has shown. Nobody goes to a node that was slow, so nobody sees it
    recover: `rest`."""

    decode: Ratio = field(default_factory=Ratio)
    prefill: Ratio = field(default_factory=Ratio)
    planned: tuple[float, float] = (1.0, 1.0)
    accepted: tuple[float, float] = (1.0, 1.0)
    departed_ms: int | None = None
    routed: tuple[float, float] = (1.0, 1.0)
    usual: tuple[float, float] = (1.0, 1.0)
    resting_since_ms: int | None = None
    num_rests: int = 0
    num_trials: int = 0

    @classmethod
    def after(cls, before: "Calibration") -> "Calibration":
        """Of the same device at other work: as slow as it was, until it shows otherwise."""
        decode, prefill = before.factors
        return cls(
            Ratio(decode),
            Ratio(prefill),
            before.planned,
            before.accepted,
            routed=before.routed,
            usual=before.usual,
        )

    @property
    def factors(self) -> tuple[float, float]:
        """Decode and prefill."""
        return self.decode.factor, self.prefill.factor

    @property
    def route_factors(self) -> tuple[float, float]:
        """The same for a request that finds the node idle: less of what is unusual the longer
        nothing has run there."""
        left = 0.5**self.num_rests
        decode, prefill = (
            usual * (now / usual) ** left if now > usual else now
            for now, usual in zip(self.factors, self.usual, strict=True)
        )
        return decode, prefill

    @property
    def is_dear(self) -> bool:
        """Whether it is notably slower than usual."""
        pairs = zip(self.factors, self.usual, strict=True)
        return any(now >= DEPARTURE * usual for now, usual in pairs)

    def rest(self, now_ms: int) -> None:
        """Nothing ran since the last report. The next observations count for more than old ones."""
        if self.resting_since_ms is None:
            self.resting_since_ms = now_ms
        if not self.is_dear:
            return
        rest_ms = REST_MS << min(self.num_trials, TRIALS_MAX)
        num_rests = (now_ms - self.resting_since_ms) // rest_ms
        if num_rests > self.num_rests:
            self.num_rests = num_rests
            self.decode.start_anew()
            self.prefill.start_anew()

    def work(self) -> None:
        """Something was learnt. What came to a node that had rested was a trial, which ends when
        enough is known."""
        self.resting_since_ms = None
        kinds = zip((self.decode, self.prefill), self.usual, strict=True)
        decode, prefill = (min(u, kind.factor) if kind.is_known else u for kind, u in kinds)
        self.usual = decode, prefill
        if self.num_rests and (self.decode.is_known or self.prefill.is_known):
            self.num_rests = 0
            self.num_trials = self.num_trials + 1 if self.is_dear else 0
            self.routed = (0.0, 0.0)  # whatever it came to, routes are to know

    def tell_routes(self) -> bool:
        """Whether routes have to be priced anew."""
        pairs = tuple(zip(self.route_factors, self.routed, strict=True))
        least = 1.0 + REST_CHANGE if self.num_rests else NOTABLE
        if all(now < least * then and then < least * now for now, then in pairs):
            return False
        self.routed = self.route_factors
        return True

    def observe(
        self,
        cost: StageCost,
        span: LayerSpan,
        spec: ModelSpec,
        *,
        before: StepTotals,
        now: StepTotals,
    ) -> bool:
        """Hold the node's own prediction `cost` against what it did between two reports. Returns
        whether anything was learnt."""
        is_last = span.end == spec.num_layers
        learnt = False
        steps = now.decode_steps - before.decode_steps
        if steps > 0:
            layers = (now.decode_layers - before.decode_layers) / steps
            batch = (now.decode_rows - before.decode_rows) / steps
            observed_ms = (now.decode_ms - before.decode_ms) / steps
            if 0.0 < layers <= len(span) and batch >= 1.0:
                predicted_ms = cost.decode_ms(
                    round(layers), batch, is_first=span.start == 0, is_last=is_last
                )
                learnt = self.decode.add(predicted_ms, observed_ms)
        chunks = now.prefill_steps - before.prefill_steps
        layer_tokens = now.prefill_layer_tokens - before.prefill_layer_tokens
        if chunks > 0 and layer_tokens > 0:
            predicted_ms = cost.prompts_ms(chunks, chunks * len(span), layer_tokens)
            predicted_ms += cost.head_ms if is_last else 0.0
            learnt |= self.prefill.add(predicted_ms, now.prefill_ms - before.prefill_ms)
        return learnt

    def is_departed(self, now_ms: int, *, patience_ms: int) -> bool:
        """Whether what is observed has been far from what plans believe for `patience_ms`."""
        pairs = zip(self.factors, self.accepted, strict=True)
        if all(now < SLOWDOWN * then and then < DEPARTURE * now for now, then in pairs):
            self.departed_ms = None
            return False
        if self.departed_ms is None:
            self.departed_ms = now_ms
        return now_ms - self.departed_ms >= patience_ms

    @property
    def is_slower(self) -> bool:
        """Whether steps of decodes take longer than when a plan could last move the node."""
        return self.decode.factor > self.accepted[0]

    def reprice(self, *, may_move: bool = True) -> None:
        """Plans believe what is observed from now on; a node that this one cannot move may still
        call for another."""
        self.planned = self.factors
        if may_move:
            self.accepted, self.departed_ms = self.planned, None


def calibrated(cost: StageCost, factors: tuple[float, float]) -> StageCost:
    """`cost` as the node is: decode and prefill times multiplied."""
    decode, prefill = factors
    if factors == (1.0, 1.0):
        return cost
    return replace(
        cost,
        overhead_ms=cost.overhead_ms * decode,
        layer_ms=cost.layer_ms * decode,
        layer_ms_per_extra=cost.layer_ms_per_extra * decode,
        prefill_layer_ms_per_token=cost.prefill_layer_ms_per_token * prefill,
        head_ms=cost.head_ms * decode,
        embed_ms=cost.embed_ms * decode,
    )


def repriced(profile: NodeProfile, spec: ModelSpec, cost: StageCost) -> NodeProfile:
    """The profile as if the node had measured `cost` of this model."""
    own = LayerTiming(
        model_id=spec.model_id,
        decode_layer_ms=cost.layer_ms,
        decode_layer_ms_per_extra=cost.layer_ms_per_extra,
        prefill_layer_ms_per_token=cost.prefill_layer_ms_per_token,
        head_ms=cost.head_ms,
        embed_ms=cost.embed_ms,
        step_overhead_ms=cost.overhead_ms,
    )
    others = tuple(t for t in profile.timings if t.model_id != spec.model_id)
    return replace(profile, timings=(*others, own))
