"""How fast bytes pass: the bucket, the pace of all streams, and weights."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.agent.weights import OwnersGate, allows_model
from node.owner.bucket import BURST_S, TokenBucket, wire_bytes
from node.owner.limits import GB
from node.owner.settings import read_settings
from node.transport.pace import Pace
from plait.errors import WeightsError


class Time:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@given(
    rate=st.floats(1_000, 1e8),
    sizes=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=40),
    idle_s=st.floats(0, 3),
)
def test_no_time_sees_more_than_the_rate_a_burst_and_a_frame(
    rate: float, sizes: list[int], idle_s: float
) -> None:
    time = Time()
    bucket = TokenBucket(rate, time)
    passed: list[tuple[float, int]] = []
    for index, size in enumerate(sizes):
        time.sleep(bucket.wait_s() + (idle_s if index % 7 == 3 else 0.0))
        bucket.take(size)
        passed.append((time.now_s, size))
    for first in range(len(passed)):
        start_s = passed[first][0]
        for last in range(first, len(passed)):
            length_s = passed[last][0] - start_s
            total = sum(size for _, size in passed[first : last + 1])
            assert total <= rate * (length_s + BURST_S) * 1.001 + max(sizes)


def test_prompts_wait_for_all_that_was_sent_and_tokens_only_for_tokens() -> None:
    time = Time()
    pace = Pace(now_s=time, up_bytes_per_s=1_000_000.0)
    link = object()
    assert pace.bulk_wait_s(link) == 0.0
    pace.sent(4_000_000, is_bulk=True)
    pace.leave(link)
    assert pace.bulk_wait_s(link) == pytest.approx(4.14 - BURST_S, rel=0.01)
    assert pace.quick_wait_s() == 0.0
    time.sleep(4.0)
    assert pace.bulk_wait_s(link) == 0.0
    for _ in range(400):
        pace.sent(4_000)
    assert pace.quick_wait_s() > 0.0


def test_streams_take_turns() -> None:
    time = Time()
    pace = Pace(now_s=time, up_bytes_per_s=1_000.0)
    first, second = object(), object()
    assert pace.bulk_wait_s(first) == 0.0
    assert 0.0 < pace.bulk_wait_s(second) < 0.01
    pace.leave(first)
    assert pace.bulk_wait_s(second) == 0.0


def test_without_limits_nothing_waits_and_all_is_counted() -> None:
    pace = Pace(now_s=lambda: 0.0)
    pace.sent(10**9, is_bulk=True)
    pace.received(7)
    assert pace.bulk_wait_s(pace) == pace.quick_wait_s() == pace.credit_wait_s() == 0.0
    assert pace.totals.all_bytes == 10**9 + 7


def test_weights_come_at_the_owners_rate_and_are_counted(tmp_path: Path) -> None:
    time, counted = Time(), list[int]()
    settings = read_settings(tmp_path / "n", environ={}, flags=["down_mbit=8"])
    gate = OwnersGate(settings, tmp_path, count=counted.append, now_s=time, sleep=time.sleep)
    for _ in range(100):
        gate.arrived(100_000)
    assert sum(counted) == 10_000_000
    assert time.now_s - 100.0 == pytest.approx(wire_bytes(10_000_000) / 1e6 - BURST_S, rel=0.01)


def test_disk_limits_name_themselves(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(2_000_000))
    settings = read_settings(tmp_path / "n", environ={}, flags=["disk_gb=0.01"])
    gate = OwnersGate(settings, tmp_path, count=lambda _: None, now_s=lambda: 0.0)
    assert gate.free_bytes(tmp_path) == int(0.01 * GB) - 2_000_000
    gate.require_space(tmp_path, 8_000_000)
    with pytest.raises(WeightsError, match=r"its owner's limits count: --set: disk_gb") as full:
        gate.require_space(tmp_path, 9_000_000)
    assert full.value.code == "disk_full"
    reserve = read_settings(tmp_path / "n", environ={}, flags=["disk_min_free_gb=999999"])
    assert (
        OwnersGate(reserve, tmp_path, count=lambda _: None, now_s=lambda: 0.0).free_bytes(tmp_path)
        == 0
    )


def test_models_by_name_and_pattern(tmp_path: Path) -> None:
    limits = read_settings(
        tmp_path / "n", environ={}, flags=['models_allow=["smollm2*", "tiny"]']
    ).limits
    names = ("smollm2-135m", "tiny", "tiny2", "qwen3")
    assert [allows_model(limits, name) for name in names] == [True, True, False, False]
