"""How many bytes of weights came from where, and what was given to others."""

from dataclasses import dataclass, field

from plait.types.weights import WeightTotals

COORDINATOR = "coordinator"
"""Gives headers, with its answers."""
SOURCES_MAX = 16


@dataclass(slots=True)
class WeightCounts:
    """Since the node's start. Sources are node ids; `rejected` counts chunks that were wrong."""

    hub_bytes: int = 0
    served_bytes: int = 0
    from_source: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def came(self, source: str, num_bytes: int) -> None:
        self.from_source[source] = self.from_source.get(source, 0) + num_bytes

    def reject(self, source: str) -> None:
        self.rejected[source] = self.rejected.get(source, 0) + 1

    def refuse(self, why: str) -> None:
        """A neighbour asked for what it does not get."""
        self.refused[why] = self.refused.get(why, 0) + 1

    def totals(self) -> WeightTotals:
        return WeightTotals(
            hub_bytes=self.hub_bytes,
            neighbour_bytes=sum(self.from_source.values()),
            served_bytes=self.served_bytes,
            rejected_chunks=sum(self.rejected.values()),
            refused_requests=sum(self.refused.values()),
        )

    def line(self) -> str:
        """For people; empty where nothing travelled."""
        totals, parts = self.totals(), []
        if totals.neighbour_bytes:
            most = sorted(self.from_source.items(), key=lambda entry: -entry[1])[:SOURCES_MAX]
            named = ", ".join(f"{source} {_mb(num_bytes)}" for source, num_bytes in most)
            parts.append(f"{_mb(totals.neighbour_bytes)} from neighbours ({named})")
        if totals.hub_bytes:
            parts.append(f"{_mb(totals.hub_bytes)} from the hub")
        if totals.served_bytes:
            parts.append(f"{_mb(totals.served_bytes)} given to others")
        if self.rejected:
            named = ", ".join(f"{source} ({count})" for source, count in self.rejected.items())
            parts.append(f"wrong bytes from {named}")
        if totals.refused_requests:
            parts.append(f"{totals.refused_requests} requests of others refused")
        return "; ".join(parts)


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"
