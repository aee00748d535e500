"""In which orders nodes are tried for a chain: what no plan under way changes, worked out once."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from plait.types import LayerSpan, NodeId
from scheduler.allocation.fit import Room
from scheduler.cost import Links, StageCost

NEAR_MS: Final = 10
"""Round trips are told apart by so much."""


class Cap(Protocol):
    """`ChainPlanner.cap`."""

    def __call__(self, node_id: NodeId, *, is_first: bool, is_last: bool) -> int: ...


class Orders:
    """Of all nodes that can hold a layer of one model."""

    def __init__(self, cap: Cap, costs: Mapping[NodeId, StageCost], links: Links) -> None:
        self._cap = cap
        self._own_ms = {n: links.coordinator_rtt_ms(n) for n in costs}
        self._measured: dict[NodeId, dict[NodeId, float]] = {}
        for (a, b), rtt_ms in links.measured().items():
            # As measured from a; what b measured counts where a measured nothing.
            self._measured.setdefault(a, {})[b] = rtt_ms
            self._measured.setdefault(b, {}).setdefault(a, rtt_ms)
        every = {n: cap(n, is_first=False, is_last=False) for n in sorted(costs)}
        self._plain = {n: layers for n, layers in every.items() if layers >= 1}
        self.roomiest = sorted(self._plain, key=lambda n: (-every[n], costs[n].layer_ms, n))
        self.quickest = sorted(self._plain, key=lambda n: (costs[n].layer_ms, -every[n], n))
        self._nearest: dict[NodeId, Sequence[NodeId]] = {}
        self._rooms: dict[tuple[bool, bool], Mapping[NodeId, Room]] = {}

    def nearest(self, seed: NodeId) -> Sequence[NodeId]:
        """The seed, then whoever is near it, the roomiest first of those that are as near."""
        known = self._nearest.get(seed)
        if known is None:
            measured, own_ms = self._measured, self._own_ms
            seed_ms, pairs = own_ms[seed], measured.get(seed, {})
            ranked = [
                (round(pairs.get(n, seed_ms + own_ms[n]) / NEAR_MS), -layers, n)
                for n, layers in self._plain.items()
                if n != seed
            ]
            ranked.sort()
            known = self._nearest[seed] = [seed, *(n for _, _, n in ranked)]
        return known

    def rooms(self, target: LayerSpan, num_layers: int) -> Mapping[NodeId, Room]:
        """What each can hold of `target`, with the embedding or the head where it has them."""
        is_first, is_last = key = (target.start == 0, target.end == num_layers)
        known = self._rooms.get(key)
        if known is None:
            cap = self._cap
            known = {
                n: Room(
                    plain=plain,
                    first=cap(n, is_first=is_first, is_last=False),
                    last=cap(n, is_first=False, is_last=is_last),
                    alone=cap(n, is_first=is_first, is_last=is_last),
                )
                for n, plain in self._plain.items()
            }
            self._rooms[key] = known
        return known
