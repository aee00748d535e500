"""Contiguous ranges of decoder layers."""

from dataclasses import dataclass
from operator import attrgetter


@dataclass(frozen=True, slots=True, order=True)
class LayerSpan:
    """Decoder layers [start, end), zero-based. The embedding belongs to layer 0's holder, the
    final norm and LM head to the holder of the last layer."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"not a layer span: [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.start}-{self.end - 1}"

    def contains(self, other: "LayerSpan") -> bool:
        """Whether every layer of `other` is in this span."""
        return self.start <= other.start and other.end <= self.end


def missing_spans(held: list[LayerSpan], num_layers: int) -> list[LayerSpan]:
    """Layers of [0, num_layers) that no span of `held` covers, as maximal spans in order."""
    missing: list[LayerSpan] = []
    at = 0
    for span in sorted(held, key=attrgetter("start")):
        if span.start > at:
            missing.append(LayerSpan(at, span.start))
        at = max(at, span.end)
    if at < num_layers:
        missing.append(LayerSpan(at, num_layers))
    return missing
