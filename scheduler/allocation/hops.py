"""Hops between the nodes of a problem: what each takes, and the least that any can."""

from collections.abc import Collection

from plait.types import NodeId
from scheduler.cost import Links


class Hops:
    """`leaving_ms[a] + arriving_ms[b]` is no more than `ms(a, b)`, for any two nodes."""

    def __init__(self, links: Links, node_ids: Collection[NodeId], hop_bytes: int) -> None:
        self._links = links
        self._hop_bytes = hop_bytes
        self._known: dict[tuple[NodeId, NodeId], float] = {}
        nearest_ms: dict[NodeId, float] = {}
        for pair, rtt_ms in links.measured().items():
            for node_id in pair:
                nearest_ms[node_id] = min(rtt_ms, nearest_ms.get(node_id, rtt_ms))
        quickest: dict[NodeId, float] = {}
        for (one, _), bytes_per_s in links.measured_bytes_per_s().items():
            quickest[one] = max(bytes_per_s, quickest.get(one, 0.0))
        self.leaving_ms: dict[NodeId, float] = {}
        self.arriving_ms: dict[NodeId, float] = {}
        for n in node_ids:
            # Where nothing was measured, a round trip is both nodes' own to the coordinator.
            own_ms = links.coordinator_rtt_ms(n)
            bytes_per_s = max(links.up_bytes_per_s(n), quickest.get(n, 0.0))
            near_ms = min(own_ms, nearest_ms.get(n, own_ms))
            self.leaving_ms[n] = near_ms / 2 + 1e3 * hop_bytes / bytes_per_s
            self.arriving_ms[n] = 0.0 if n in nearest_ms else own_ms / 2

    def ms(self, a: NodeId, b: NodeId) -> float:
        """Half a round trip and the transfer."""
        hop = a, b
        known = self._known.get(hop)
        if known is None:
            known = self._known[hop] = self._links.hop_ms(a, b, self._hop_bytes)
        return known
