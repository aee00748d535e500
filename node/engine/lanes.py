"""Parts of one step side by side, on as many threads as the engine was given.

A kernel that uses one thread leaves the other cores idle. Rows of different sequences do not depend
on each other, and kernels let go of Python's lock, so two halves of a batch run at once over one
set of weights. Up to a few rows a product takes about as long as for one, so parts are not smaller.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

ROWS_PER_LANE = 4
"""Rows that a part has at least: fewer would read all weights for little."""

_T = TypeVar("_T")


class Lanes:
    """Runs jobs side by side; lives in the engine's thread. Threads start when they are needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, jobs: Sequence[Callable[[], _T]]) -> list[_T]:
        """Results in the jobs' order: the first in this thread, each other one beside it. Raises
        what a job raised, when all have ended."""
        if len(jobs) == 1:
            return [jobs[0]()]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                max_workers=max(1, torch.get_num_threads() - 1),
                thread_name_prefix="plait-lane",
                initializer=torch.set_num_threads,
                initargs=(1,),
            )
        others = [self._pool.submit(_inferring, job) for job in jobs[1:]]
        try:
            first = jobs[0]()
        finally:
            for other in others:
                other.exception()
        return [first, *(other.result() for other in others)]

    def close(self) -> None:
        """End the threads. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def lanes_for(row_counts: Sequence[int], num_lanes: int) -> list[range]:
    """Which items go together, in order: at most `num_lanes` stretches of about as many rows each,
    and none, unless it is the only one, with fewer than `ROWS_PER_LANE`."""
    total = sum(row_counts)
    num_lanes = max(1, min(num_lanes, len(row_counts), total // ROWS_PER_LANE))
    stretches: list[range] = []
    start, done = 0, 0
    for index, count in enumerate(row_counts):
        done += count
        is_full = done * num_lanes >= total * (len(stretches) + 1)
        if is_full or index == len(row_counts) - 1:
            stretches.append(range(start, index + 1))
            start = index + 1
    return stretches


@torch.inference_mode()
def _inferring(job: Callable[[], _T]) -> _T:
    return job()
