"""How long nodes stay attached, over their reconnects: plans count on the steady ones."""

from collections import OrderedDict
from typing import Final

from plait.types import NodeId
from scheduler.survival import mean_session_s

NODES_MAX: Final = 10_000
SESSIONS_MAX: Final = 20


class Lifetimes:
    """The last sessions of each node, of at most `NODES_MAX` nodes; the one heard of longest ago
    is forgotten first."""

    def __init__(self) -> None:
        self._ended_s: OrderedDict[NodeId, tuple[float, ...]] = OrderedDict()

    def record(self, node_id: NodeId, session_ms: int) -> None:
        """A session ended."""
        before = self._ended_s.pop(node_id, ())
        self._ended_s[node_id] = (*before, session_ms / 1e3)[-SESSIONS_MAX:]
        while len(self._ended_s) > NODES_MAX:
            self._ended_s.popitem(last=False)

    def mean_session_s(self, node_id: NodeId, attached_ms: int) -> float:
        """How long the node is expected to stay, attached for so long now."""
        return mean_session_s(self._ended_s.get(node_id, ()), now_s=attached_ms / 1e3)

    def __len__(self) -> int:
        return len(self._ended_s)
