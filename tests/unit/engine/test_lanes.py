"""Parts of a step side by side: how it is cut, and what becomes of results and errors."""

import threading

import pytest
import torch

from node.engine.lanes import ROWS_PER_LANE, Lanes, lanes_for


@pytest.mark.parametrize(
    ("row_counts", "num_lanes", "expected"),
    [
        ([1] * 8, 1, [8]),
        ([1] * 8, 2, [4, 4]),
        ([1] * 7, 2, [7]),
        ([1] * 9, 2, [5, 4]),
        ([128], 2, [1]),
        ([1, 1, 1, 1, 128], 2, [5]),
        ([64, 64, 64], 2, [2, 1]),
        ([1] * 64, 4, [16, 16, 16, 16]),
    ],
)
def test_stretches_hold_all_items_in_order(
    row_counts: list[int], num_lanes: int, expected: list[int]
) -> None:
    lanes = lanes_for(row_counts, num_lanes)
    assert [len(lane) for lane in lanes] == expected
    assert [i for lane in lanes for i in lane] == list(range(len(row_counts)))
    if len(lanes) > 1:
        assert all(sum(row_counts[i] for i in lane) >= ROWS_PER_LANE for lane in lanes)


def test_jobs_run_at_once_and_answer_in_order() -> None:
    lanes = Lanes()
    meeting = threading.Barrier(2, timeout=10)

    def job(name: str) -> tuple[str, bool]:
        meeting.wait()  # fails unless both are under way
        return name, torch.is_inference_mode_enabled()

    with torch.inference_mode():
        results = lanes.run([lambda: job("a"), lambda: job("b")])
    assert results == [("a", True), ("b", True)]
    lanes.close()
    lanes.close()


def test_an_error_is_raised_when_all_have_ended() -> None:
    lanes = Lanes()
    ended = threading.Event()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        lanes.run([fail, ended.set])
    assert ended.is_set()
    lanes.close()
