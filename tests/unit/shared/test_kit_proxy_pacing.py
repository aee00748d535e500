"""When bytes come out of a link, by a clock that is told."""

import random
from itertools import pairwise

import pytest

from tests.kit.proxy_pacing import SEGMENT_BYTES, Conditions, Pacer


def pacer(**conditions: float) -> Pacer:
    return Pacer(Conditions(**conditions), random.Random(1))  # type: ignore[arg-type]


def test_an_untouched_link_delays_nothing() -> None:
    assert pacer().due_s(5.0, 1_000_000) == 5.0


def test_a_delay_is_the_same_for_all_and_one_does_not_wait_for_another() -> None:
    link = pacer(delay_ms=20.0)
    assert [link.due_s(1.0 + k / 1000, 100) for k in range(3)] == pytest.approx(
        [1.020, 1.021, 1.022]
    )


def test_jitter_is_drawn_between_nothing_and_its_most() -> None:
    link = pacer(delay_ms=10.0, jitter_ms=5.0)
    late_ms = [1e3 * link.due_s(0.0, 1) - 10.0 for _ in range(200)]
    assert 0.0 <= min(late_ms) < 1.0 and 4.0 < max(late_ms) <= 5.0


def test_beyond_the_burst_bytes_leave_at_the_rate() -> None:
    link = pacer(bytes_per_s=1000.0, burst_bytes=500)
    times = [link.due_s(0.0, 250) for _ in range(6)]
    assert times == pytest.approx([0.0, 0.0, 0.25, 0.5, 0.75, 1.0])


def test_a_bucket_fills_up_again_and_no_further_than_its_burst() -> None:
    link = pacer(bytes_per_s=1000.0, burst_bytes=500)
    link.due_s(0.0, 500)
    assert link.due_s(0.25, 250) == 0.25
    assert link.due_s(9.0, 500) == 9.0
    assert link.due_s(9.0, 100) == pytest.approx(9.1)


def test_a_change_counts_from_now_on() -> None:
    link = pacer(delay_ms=20.0)
    assert link.due_s(0.0, 1) == pytest.approx(0.020)
    link.change(delay_ms=50.0)
    assert link.due_s(0.0, 1) == pytest.approx(0.050)


def test_only_a_paced_link_cuts_large_writes_into_parts() -> None:
    data = bytes(2 * SEGMENT_BYTES + 1)
    assert [len(part) for part in pacer().segments(data)] == [len(data)]
    parts = list(pacer(bytes_per_s=1e6).segments(data))
    assert [len(part) for part in parts] == [SEGMENT_BYTES, SEGMENT_BYTES, 1]
    assert b"".join(parts) == data


def test_what_may_be_under_way_grows_with_rate_and_delay() -> None:
    sizes = [pacer(bytes_per_s=1e6, delay_ms=d).bytes_max for d in (0.0, 50.0, 100.0)]
    assert [b - a for a, b in pairwise(sizes)] == [50_000, 50_000]


@pytest.mark.parametrize(
    "wrong", [{"delay_ms": -1.0}, {"jitter_ms": -1.0}, {"bytes_per_s": 0.0}, {"burst_bytes": -1}]
)
def test_conditions_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"not negative|above 0"):
        pacer(**wrong)
