"""How long nodes stay attached, over their reconnects: plans count on the steady ones."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from plait.types import NodeId
from scheduler.survival import mean_session_s

NODES_MAX: Final = 10_000
SESSIONS_MAX: Final = 20


class Lifetimes:
    """The last sessions of each node, of at most `NODES_MAX` nodes; the one heard of longest ago
    is forgotten first."""

    def __init__(self) -> None:
        self._ended_ms: OrderedDict[NodeId, tuple[int, ...]] = OrderedDict()

    def record(self, node_id: NodeId, session_ms: int) -> tuple[int, ...]:
        """A session ended. Returns all of the node's that are remembered, the oldest first."""
        sessions_ms = (*self._ended_ms.pop(node_id, ()), session_ms)[-SESSIONS_MAX:]
        self._ended_ms[node_id] = sessions_ms
        self._forget()
        return sessions_ms

    def restore(self, node_id: NodeId, sessions_ms: Sequence[int]) -> None:
        """What an earlier coordinator remembered of a node, before whatever ended since. To be
        told of nodes in the order in which they were heard of."""
        before = tuple(ms for ms in sessions_ms if ms >= 0)
        since = self._ended_ms.pop(node_id, ())
        if before or since:
            self._ended_ms[node_id] = (*before, *since)[-SESSIONS_MAX:]
            self._forget()

    def mean_session_s(self, node_id: NodeId, attached_ms: int) -> float:
        """How long the node is expected to stay, attached for so long now."""
        ended_s = [ms / 1e3 for ms in self._ended_ms.get(node_id, ())]
        return mean_session_s(ended_s, now_s=attached_ms / 1e3)

    def _forget(self) -> None:
        while len(self._ended_ms) > NODES_MAX:
            self._ended_ms.popitem(last=False)

    def __len__(self) -> int:
        return len(self._ended_ms)
