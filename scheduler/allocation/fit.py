"""Whether some order of given nodes holds given layers, by arithmetic alone."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """Layers that a node can hold: in the middle, as first, as last stage, and alone."""

    plain: int
    first: int
    last: int
    alone: int


def ends_fit(rooms: Sequence[Room], num_layers: int) -> bool:
    """Whether two of the nodes can be the ends of a chain over `num_layers` in which all of them
    have room enough together, or one holds them alone. Exact but for nodes beyond the number of
    layers; O(n log n)."""
    if any(room.alone >= num_layers for room in rooms):
        return True
    places = [i for i, room in enumerate(rooms) if room.plain > 0]
    # The two cheapest of either kind are enough: they are two different nodes, or one is left.
    firsts = sorted((rooms[i].plain - rooms[i].first, i) for i in places if rooms[i].first > 0)[:2]
    lasts = sorted((rooms[i].plain - rooms[i].last, i) for i in places if rooms[i].last > 0)[:2]
    losses = [a + b for a, i in firsts for b, j in lasts if i != j]
    return bool(losses) and sum(rooms[i].plain for i in places) - min(losses) >= num_layers
