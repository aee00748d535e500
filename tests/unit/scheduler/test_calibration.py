"""Calibration: it converges, lies do not move it, plans are told only of what lasts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.types import LayerSpan, StepTotals
from scheduler.calibration import REST_MS, WINDOW, Calibration, Ratio, calibrated, repriced
from scheduler.cost import stage_cost
from tests.unit.scheduler.pools import node, tiny_model

SPEC = tiny_model()
SPAN = LayerSpan(0, 10)


@given(
    true=st.floats(0.2, 20.0),
    noise=st.floats(0.0, 0.2),
    lies=st.lists(st.floats(1e-6, 1e6), max_size=WINDOW // 2),
    seed=st.integers(0, 2**16),
)
def test_the_factor_stays_where_most_observations_are(
    true: float, noise: float, lies: list[float], seed: int
) -> None:
    rng = random.Random(seed)
    seen = [true * rng.uniform(1 - noise, 1 + noise) for _ in range(WINDOW - len(lies))]
    ratio = Ratio()
    for observed in rng.sample([*seen, *lies], WINDOW):
        ratio.add(1.0, observed)
    assert min(seen) * 0.99 <= ratio.factor <= max(seen) * 1.01


def test_a_change_is_believed_after_half_a_window() -> None:
    ratio = Ratio()
    for _ in range(WINDOW):
        ratio.add(2.0, 2.0)
    for _ in range(WINDOW // 2 + 1):
        ratio.add(2.0, 6.0)
    assert ratio.factor == 3.0 and ratio.error_percent == pytest.approx(-66.67, abs=0.01)


def test_two_observations_and_nonsense_change_nothing() -> None:
    ratio = Ratio()
    assert ratio.add(1.0, 5.0) and ratio.add(1.0, 5.0)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        assert not ratio.add(1.0, bad) and not ratio.add(bad, 1.0)
    assert ratio.factor == 1.0 and ratio.error_percent is None


def test_steps_are_held_against_their_own_batch_and_layers() -> None:
    cost = stage_cost(node("a"), SPEC)
    calibration, before = Calibration(), StepTotals()
    for _ in range(WINDOW):
        now = StepTotals(
            decode_steps=before.decode_steps + 4,
            decode_ms=before.decode_ms + 4 * 3.0 * cost.decode_ms(10, 5, is_first=True),
            decode_rows=before.decode_rows + 20,
            decode_layers=before.decode_layers + 40,
            prefill_steps=before.prefill_steps + 1,
            prefill_ms=before.prefill_ms + 2.0 * cost.prefill_ms(10, 300),
            prefill_layer_tokens=before.prefill_layer_tokens + 3_000,
        )
        assert calibration.observe(cost, SPAN, SPEC, before=before, now=now)
        before = now
    assert list(calibration.factors) == pytest.approx([3.0, 2.0])
    exact = calibrated(cost, calibration.factors)
    assert exact.decode_ms(10, 5) == pytest.approx(3.0 * cost.decode_ms(10, 5))
    assert stage_cost(repriced(node("a"), SPEC, exact), SPEC) == exact


def test_a_restarted_count_teaches_nothing() -> None:
    cost, calibration = stage_cost(node("a"), SPEC), Calibration()
    before = StepTotals(decode_steps=50, decode_ms=99.0, decode_rows=50, decode_layers=500)
    assert not calibration.observe(cost, SPAN, SPEC, before=before, now=StepTotals())
    assert calibration.factors == (1.0, 1.0)


def test_only_a_lasting_departure_calls_for_another_plan() -> None:
    calibration = Calibration()
    for _ in range(WINDOW):
        calibration.decode.add(1.0, 2.0)
    assert not calibration.is_departed(0, patience_ms=60_000)
    assert not calibration.is_departed(59_999, patience_ms=60_000)
    assert calibration.is_departed(60_000, patience_ms=60_000)
    calibration.reprice()
    assert not calibration.is_departed(200_000, patience_ms=60_000)
    for _ in range(WINDOW):
        calibration.decode.add(1.0, 2.2)
    assert not calibration.is_departed(300_000, patience_ms=0)


def test_after_a_rest_three_observations_decide_and_until_then_the_old_ones_do() -> None:
    ratio, unseen = Ratio(), Ratio()
    unseen.start_anew()
    assert unseen.error_percent is None, "nothing was ever seen"
    for _ in range(WINDOW):
        ratio.add(1.0, 4.0)
    ratio.start_anew()
    assert ratio.add(1.0, 1.0) and ratio.add(1.0, 1.0)
    assert (ratio.factor, ratio.error_percent) == (4.0, -75.0)
    assert ratio.add(1.0, 1.0)
    assert (ratio.factor, ratio.error_percent) == (1.0, 0.0)


def test_routes_hear_of_every_rest_and_of_how_a_trial_ended() -> None:
    """The node is usually quicker than predicted: that is where its price goes back to."""
    calibration = Calibration()
    seen = (0.8, 4.0)
    for factor in seen:
        for _ in range(WINDOW):
            calibration.decode.add(1.0, factor)
        calibration.work()
    assert calibration.tell_routes() and not calibration.tell_routes()
    calibration.rest(0)
    assert not calibration.tell_routes()
    told = []
    for num_rests in range(1, 5):
        calibration.rest(num_rests * REST_MS)
        assert calibration.tell_routes() and not calibration.tell_routes()
        told.append(calibration.route_factors[0])
    assert told == pytest.approx([0.8 * 5 ** (0.5**n) for n in range(1, 5)])
    for _ in range(3):
        calibration.decode.add(1.0, 0.8)
    calibration.work()
    assert calibration.tell_routes()
    assert calibration.route_factors == (0.8, 1.0)
