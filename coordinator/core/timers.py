"""Deadlines of the core, in order."""

import heapq
from enum import StrEnum
from typing import NamedTuple

from plait.types import NodeId, PipelineId, RequestId


class TimerKind(StrEnum):
    """What is due."""

    LEASE = "lease"
    SOLVE = "solve"
    SOLVE_LIMIT = "solve_limit"
    RETRY = "retry"
    LOAD_STALL = "load_stall"
    DRAIN_LIMIT = "drain_limit"
    DRAIN_MOVE = "drain_move"
    OPEN_LIMIT = "open_limit"
    PREFILL_LIMIT = "prefill_limit"
    WAIT_LIMIT = "wait_limit"
    REQUEST_LIMIT = "request_limit"
    DISPATCH = "dispatch"


class NodeKey(NamedTuple):
    """One attachment of a node: an incarnation may attach again after it was lost."""

    node_id: NodeId
    attachment: int


TimerKey = NodeKey | PipelineId | RequestId | int | None


class Timers:
    """A heap of (when, counter, kind, key). Stale entries are left in and ignored when due."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerKind, TimerKey]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when_ms: int, kind: TimerKind, key: TimerKey = None) -> None:
        """Set one."""
        self._count += 1
        heapq.heappush(self._heap, (when_ms, self._count, kind, key))

    def next_ms(self) -> int | None:
        """When the earliest is due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> tuple[TimerKind, TimerKey] | None:
        """Take the earliest that is due."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, kind, key = heapq.heappop(self._heap)
        return kind, key
