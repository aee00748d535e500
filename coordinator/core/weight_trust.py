"""Whose word counts for what bytes of weights hash to, and whose does not any more.

The coordinator's own look settles. Else counts who was sent to the hub for the range, or two who
say the same. One alone counts for nodes that cannot ask the hub.
"""

from plait.types import NodeId
from plait.types.weights import ChunkHashes

ACCUSED_MAX = 3
"""Who accuses more nodes than this within the time of an accusation is not believed."""


class Words:
    """What was said of one range."""

    __slots__ = ("_fetched", "_said", "settled")

    def __init__(self) -> None:
        self.settled: ChunkHashes | None = None
        self._said: dict[NodeId, ChunkHashes] = {}
        self._fetched: dict[NodeId, None] = {}

    def say(self, node_id: NodeId, hashes: ChunkHashes, *, was_sent: bool) -> bool:
        """A node's word; the last one counts. False where it contradicts what is settled."""
        if self.settled is not None:
            return hashes == self.settled
        self._said[node_id] = hashes
        if was_sent:
            self._fetched[node_id] = None
        return True

    def take_back(self, node_id: NodeId) -> None:
        """As if it had never spoken."""
        self._said.pop(node_id, None)
        self._fetched.pop(node_id, None)

    def settle(self, hashes: ChunkHashes) -> tuple[NodeId, ...]:
        """What is so; returns who said otherwise."""
        self.settled = hashes
        liars = tuple(node for node, said in self._said.items() if said != hashes)
        self._said.clear()
        self._fetched.clear()
        return liars

    @property
    def is_disputed(self) -> bool:
        """Whether different things were said."""
        return self.settled is None and len(set(self._said.values())) > 1

    def trusted(self, *, takes_one: bool) -> ChunkHashes | None:
        """What the range must hash to; None where nobody's word is enough, or they differ."""
        if self.settled is not None:
            return self.settled
        if self.is_disputed or not self._said:
            return None
        is_enough = bool(self._fetched) or len(self._said) > 1 or takes_one
        return next(iter(self._said.values())) if is_enough else None


class Accusations:
    """Nodes of which others say that they gave wrong bytes, for a while."""

    def __init__(self, avoid_ms: int) -> None:
        self._avoid_ms = avoid_ms
        self._by: dict[NodeId, dict[NodeId, int]] = {}
        self._distrusted: set[NodeId] = set()

    def accuse(self, by: NodeId, holder: NodeId, now_ms: int) -> bool:
        """`holder` gave `by` wrong bytes. Who says so of everybody is heard no more. Returns
        whether that is news."""
        accused = [h for h, who in self._by.items() if who.get(by, 0) > now_ms and h != holder]
        if len(accused) >= ACCUSED_MAX:
            return False
        accusers = self._by.setdefault(holder, {})
        is_news = accusers.get(by, 0) <= now_ms
        accusers[by] = now_ms + self._avoid_ms
        return is_news

    def num_accusers(self, holder: NodeId, now_ms: int) -> int:
        return sum(end_ms > now_ms for end_ms in self._by.get(holder, {}).values())

    def is_accused(self, holder: NodeId, now_ms: int) -> bool:
        """By one at least: others are asked first."""
        return self.num_accusers(holder, now_ms) > 0

    def is_shunned(self, holder: NodeId, now_ms: int) -> bool:
        """By two: nobody is sent there."""
        return holder in self._distrusted or self.num_accusers(holder, now_ms) > 1

    def distrust(self, node_id: NodeId) -> None:
        """It said what is not so. For good."""
        self._distrusted.add(node_id)

    def is_distrusted(self, node_id: NodeId) -> bool:
        return node_id in self._distrusted
