"""Tensors between ranks over torch.distributed: gloo on CPUs, NCCL between GPUs.

Three ways to sum, of which the quickest for the message is taken. *Ring*: the backend's own;
2 (n - 1) messages one after the other, each an n-th of the rows. *Star*: all to rank 0 and back;
two messages after one another (TPI-LLM, arXiv 2410.00531, section 3: on slow links latency decides,
not bandwidth). *Direct*: everyone to everyone, one message after the other's none. Star and direct
add in the ranks' order, so their sums are equal, bit for bit, and so are all three of two ranks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Store

from node.engine.device import Device
from node.engine.parallel.channel import LOST
from node.engine.parallel.split import Split
from plait.errors import ConfigError, UnavailableError

TUNED_ROWS: Final = (1, 4, 16, 64, 256)
_REPEATS: Final = 15


class Way(StrEnum):
    """How parts are summed."""

    RING = "ring"
    STAR = "star"
    DIRECT = "direct"


class Handle(Protocol):
    """Something under way."""

    def wait(self, timeout: timedelta) -> bool:
        """Raises RuntimeError where it fails or takes longer."""
        ...


class Backend(Protocol):
    """What torch.distributed's backends have in common, and is used here."""

    def allreduce(self, tensors: list[Tensor]) -> Handle: ...

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Handle: ...

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Handle: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SumTime:
    """Of sums of so many rows: the way taken, and what each way took on rank 0, in ms."""

    num_rows: int
    num_bytes: int
    way: Way
    ways_ms: dict[Way, float]

    @property
    def sum_ms(self) -> float:
        return self.ways_ms[self.way]


class TorchCommunicator:
    """One rank's end. `hostname` is where others reach this rank; `store` is how they find out."""

    def __init__(
        self, store: Store, split: Split, device: Device, *, hostname: str, timeout_s: float
    ) -> None:
        self.split = split
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._has_nccl = device.kind == "cuda" and dist.is_nccl_available()
        self._ways: list[tuple[int, Way]] = []
        self._scratch: dict[int, Tensor] = {}
        try:
            self._group = _connect(store, split, hostname, self._timeout, nccl=self._has_nccl)
        except RuntimeError as error:
            raise _lost(error) from error

    def all_reduce(self, part: Tensor) -> Tensor:
        """As the protocol says. A part on a GPU without NCCL goes by way of plain memory."""
        mine = self._outgoing(part)
        try:
            total = self._sum(mine, self._way_for(mine.numel() * mine.element_size()))
        except RuntimeError as error:
            raise _lost(error) from error
        return total if total.device == part.device else total.to(part.device)

    def broadcast(self, rows: Tensor) -> None:
        mine = self._outgoing(rows)
        try:
            if self.split.rank:
                self._receive(mine, 0)
            else:
                self._wait([self._send(mine, other) for other in self._others])
        except RuntimeError as error:
            raise _lost(error) from error
        if self.split.rank and mine is not rows:
            rows.copy_(mine)

    def gather(self, part: Tensor, widths: tuple[int, ...]) -> Tensor | None:
        mine = self._outgoing(part)
        try:
            if self.split.rank:
                self._wait([self._send(mine, 0)])
                return None
            parts = [mine]
            for other in self._others:
                theirs = mine.new_empty((len(mine), widths[other]))
                self._receive(theirs, other)
                parts.append(theirs)
        except RuntimeError as error:
            raise _lost(error) from error
        return torch.cat(parts, dim=1).to(part.device)

    @torch.inference_mode()
    def tune(self, hidden_size: int) -> tuple[SumTime, ...]:
        """Time sums of rows of `hidden_size` numbers; from now on the quickest way is taken. All
        ranks call it at once, and take what rank 0 finds."""
        ways = (Way.RING,) if self._has_nccl else tuple(Way)
        found: list[SumTime] = []
        self._ways = []
        for num_rows in TUNED_ROWS:
            rows = torch.ones(
                (num_rows, hidden_size), dtype=self._device.dtype, device=self._device.torch_device
            )
            times = {way: self._least_ms(rows, way) for way in ways}
            chosen = torch.tensor([list(Way).index(min(times, key=times.__getitem__))])
            self._broadcast_plain(chosen)
            size = rows.numel() * rows.element_size()
            found.append(SumTime(num_rows, size, list(Way)[int(chosen[0])], times))
        self._ways = [(time.num_bytes, time.way) for time in found]
        return tuple(found)

    def close(self) -> None:
        """Let go of the others. Idempotent."""
        self._group.shutdown()

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.split.num_ranks) if rank != self.split.rank]

    def _way_for(self, num_bytes: int) -> Way:
        for limit, way in self._ways:
            if num_bytes <= limit:
                return way
        return self._ways[-1][1] if self._ways else Way.RING

    def _sum(self, mine: Tensor, way: Way) -> Tensor:
        match way:
            case Way.RING:
                self._group.allreduce([mine]).wait(self._timeout)
                return mine
            case Way.STAR:
                return self._sum_at_first(mine)
            case Way.DIRECT:
                return self._sum_everywhere(mine)

    def _sum_at_first(self, mine: Tensor) -> Tensor:
        if self.split.rank:
            self._wait([self._send(mine, 0)])
            self._receive(mine, 0)
            return mine
        for theirs in self._receive_all(mine):
            mine.add_(theirs)
        self._wait([self._send(mine, other) for other in self._others])
        return mine

    def _sum_everywhere(self, mine: Tensor) -> Tensor:
        sends = [self._send(mine, other) for other in self._others]
        parts = self._receive_all(mine)
        self._wait(sends)
        parts.insert(self.split.rank, mine)
        if self.split.rank == 0:
            total = mine
        else:
            total = torch.add(parts[0], parts[1])
            parts = parts[1:]
        for part in parts[1:]:
            total.add_(part)
        return total

    def _receive_all(self, like: Tensor) -> list[Tensor]:
        """One tensor of each other rank, in their order; all come in at once."""
        parts = [self._place(other, like) for other in self._others]
        self._wait(
            [
                self._group.recv([part], other, 0)
                for part, other in zip(parts, self._others, strict=True)
            ]
        )
        return parts

    def _place(self, rank: int, like: Tensor) -> Tensor:
        """Room for what `rank` sends, kept from sum to sum."""
        kept = self._scratch.get(rank)
        if kept is None or kept.numel() < like.numel() or kept.dtype is not like.dtype:
            kept = self._scratch[rank] = torch.empty_like(like).reshape(-1)
        return kept[: like.numel()].view(like.shape)

    def _outgoing(self, rows: Tensor) -> Tensor:
        if rows.device.type == "cpu" or self._has_nccl:
            return rows.contiguous()
        return rows.cpu()

    def _send(self, rows: Tensor, rank: int) -> Handle:
        return self._group.send([rows], rank, 0)

    def _receive(self, rows: Tensor, rank: int) -> None:
        self._wait([self._group.recv([rows], rank, 0)])

    def _wait(self, works: Sequence[Handle]) -> None:
        for work in works:
            work.wait(self._timeout)

    def _broadcast_plain(self, values: Tensor) -> None:
        if self._has_nccl:
            values_there = values.to(self._device.torch_device)
            self.broadcast(values_there)
            values.copy_(values_there)
        else:
            self.broadcast(values)

    def _least_ms(self, rows: Tensor, way: Way) -> float:
        """What else the machine does changes no choice."""
        mine = self._outgoing(rows)

        def once() -> float:
            started = time.perf_counter()
            self._sum(mine.clone(), way)
            self._device.synchronize()
            return 1e3 * (time.perf_counter() - started)

        try:
            once()
            return min(once() for _ in range(_REPEATS))
        except RuntimeError as error:
            raise _lost(error) from error


class AskedStore(Store):
    """How torch.distributed's ranks find each other where nothing else stands between them than
    their channels: `put` tells a value, `ask` waits for one."""

    def __init__(self, put: Callable[[str, bytes], None], ask: Callable[[str], bytes]) -> None:
        super().__init__()
        self._put = put
        self._ask = ask

    def set(self, key: str, value: str) -> None:
        """`value`: bytes, whatever torch's stubs say."""
        self._put(key, bytes(value))  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        return self._ask(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._ask(key)


def _connect(
    store: Store, split: Split, hostname: str, timeout: timedelta, *, nccl: bool
) -> Backend:
    """torch's stubs of these two are of another version."""
    if nccl:  # pragma: no cover - needs a GPU for each rank
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return cast("Backend", c10d.ProcessGroupNCCL(store, split.rank, split.num_ranks, options))
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError("this torch has no gloo, over which ranks would speak")
    gloo = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = timeout
    gloo._threads = 1
    gloo._devices = [c10d.ProcessGroupGloo.create_device(hostname=hostname)]
    return cast("Backend", c10d.ProcessGroupGloo(store, split.rank, split.num_ranks, gloo))


def _lost(error: RuntimeError) -> UnavailableError:
    line = next(iter(str(error).splitlines()), "")[:200]
    return UnavailableError(f"a rank of the group did not answer: {line}", reason=LOST)
