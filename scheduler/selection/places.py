"""Links that follow from where nodes are: round trips of regions, and each node's last mile."""

from collections.abc import Iterable, Mapping, Sequence

from plait.types import NodeId, NodeProfile
from scheduler.cost import Links


class Places(Links):
    """A round trip is the regions' and both last miles: N numbers instead of N squared.

    `region_rtt_ms[r][s]` is symmetric or not, as measured.
    """

    def __init__(
        self,
        profiles: Iterable[NodeProfile],
        region_of: Mapping[NodeId, int],
        mile_ms: Mapping[NodeId, float],
        region_rtt_ms: Sequence[Sequence[float]],
    ) -> None:
        super().__init__(profiles)
        self.region_of = dict(region_of)
        self.mile_ms = dict(mile_ms)
        self.region_rtt_ms = tuple(tuple(row) for row in region_rtt_ms)

    def rtt_ms(self, a: NodeId, b: NodeId) -> float:
        """Round trip between two nodes; 0 from a node to itself."""
        if a == b:
            return 0.0
        region_ms = self.region_rtt_ms[self.region_of[a]][self.region_of[b]]
        return region_ms + self.mile_ms[a] + self.mile_ms[b]


def regions_of(ids: Sequence[NodeId], links: Links) -> list[tuple[int, float]]:
    """Each node's region and last mile. Without places, nodes that nobody measured share one
    region round the coordinator, and a measured one has its own."""
    if isinstance(links, Places):
        return [(links.region_of[n], links.mile_ms[n]) for n in ids]
    pairs = (*links.measured(), *links.measured_bytes_per_s())
    measured = {n for pair in pairs for n in pair}
    lonely: dict[NodeId, int] = {}
    return [
        (lonely.setdefault(n, len(lonely) + 1), 0.0)
        if n in measured
        else (0, links.coordinator_rtt_ms(n))
        for n in ids
    ]


def bandwidths_of(
    ids: Sequence[NodeId], links: Links, measured: Mapping[tuple[NodeId, NodeId], float]
) -> list[tuple[float, float]]:
    """Each node's uplink and downlink in bytes/s; the uplink no slower than anything measured from
    it, so that a hop costs what the uplink costs or more."""
    quickest: dict[NodeId, float] = {}
    for (one, _), bytes_per_s in measured.items():
        quickest[one] = max(quickest.get(one, 0.0), bytes_per_s)
    return [
        (max(links.up_bytes_per_s(n), quickest.get(n, 0.0)), links.down_bytes_per_s(n)) for n in ids
    ]
