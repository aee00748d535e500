"""Ranks in threads of this process, and what they tell each other in plain memory."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from node.engine.parallel.split import Split

WAIT_S = 20.0
_T = TypeVar("_T")


class Table:
    """What the ranks of one group put down and pick up."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.num_sums = 0
        self._barrier = threading.Barrier(num_ranks, timeout=WAIT_S)
        self._places: list[Tensor] = [torch.empty(0)] * num_ranks

    def meet(self, rank: int, mine: Tensor) -> list[Tensor]:
        """Everybody's tensors, when all have come."""
        self._places[rank] = mine.clone()
        self._barrier.wait()
        seen = list(self._places)
        self._barrier.wait()
        return seen

    def give_up(self) -> None:
        self._barrier.abort()


class MemoryCommunicator:
    """One rank's seat at the table."""

    def __init__(self, table: Table, rank: int) -> None:
        self.split = Split(rank, table.num_ranks)
        self._table = table

    def all_reduce(self, part: Tensor) -> Tensor:
        parts = self._table.meet(self.split.rank, part)
        if self.split.rank == 0:
            self._table.num_sums += 1
        return torch.stack(parts).sum(dim=0)

    def broadcast(self, rows: Tensor) -> None:
        rows.copy_(self._table.meet(self.split.rank, rows)[0])

    def gather(self, part: Tensor, widths: tuple[int, ...]) -> Tensor | None:
        parts = self._table.meet(self.split.rank, part)
        assert tuple(p.shape[1] for p in parts) == widths
        return torch.cat(parts, dim=1) if self.split.rank == 0 else None


def side_by_side(table: Table, job: Callable[[MemoryCommunicator], _T]) -> list[_T]:
    """`job` on every rank at once; results in the ranks' order."""

    def run(rank: int) -> _T:
        try:
            return job(MemoryCommunicator(table, rank))
        except BaseException:
            table.give_up()
            raise

    with ThreadPoolExecutor(table.num_ranks) as pool:
        jobs = [pool.submit(run, rank) for rank in range(table.num_ranks)]
        return [job.result() for job in jobs]
