"""The widest dtype that does not hold its stage up."""

import pytest

from plait.types import DType
from scheduler.wire import TOLERATED_MS_PER_TOKEN, hop_dtype

MBIT = 125_000.0


@pytest.mark.parametrize(
    ("hidden", "mbit", "stage_ms", "chosen"),
    [
        (576, 20.0, 1.2, DType.FLOAT32),  # a small model on CPUs computes for longer
        (8192, 20.0, 0.1, DType.INT8),  # a large one on GPUs, over a home's uplink
        (8192, 1_000.0, 0.1, DType.FLOAT32),  # and over a LAN
        (2048, 100.0, 0.1, DType.FLOAT16),
        (8192, 0.1, 0.1, DType.INT8),  # nothing suffices
    ],
)
def test_links_decide(hidden: int, mbit: float, stage_ms: float, chosen: DType) -> None:
    assert hop_dtype(hidden, bytes_per_s=mbit * MBIT, stage_ms_per_token=stage_ms) is chosen


def test_a_hop_as_long_as_its_stage_is_no_hindrance() -> None:
    rate = 1e3 * DType.FLOAT32.row_bytes(1000) / 2.0
    assert hop_dtype(1000, bytes_per_s=rate, stage_ms_per_token=2.0) is DType.FLOAT32
    assert hop_dtype(1000, bytes_per_s=0.99 * rate, stage_ms_per_token=2.0) is DType.FLOAT16
    fast = 1e3 * DType.FLOAT32.row_bytes(1000) / TOLERATED_MS_PER_TOKEN
    assert hop_dtype(1000, bytes_per_s=fast, stage_ms_per_token=0.0) is DType.FLOAT32
