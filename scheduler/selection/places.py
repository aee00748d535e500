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
