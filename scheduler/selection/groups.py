"""The cheapest path over groups of nodes that hold the same layers in the same place.

Costs are per token and hop of the ring: a request's milliseconds divided by its number of trips,
so that hops need no scaling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Groups in ascending order of the boundary they start at.

    `nexts[g]` are (group, half a round trip in ms) of every group that starts where g ends,
    `extras[g]` the extra ms per token carried there, where links differ; `backs[g][h]` is half the
    round trip from last g to first h. `hop_min_ms[c]` is the least hop into boundary c.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    nexts: tuple[tuple[tuple[int, float], ...], ...]
    extras: tuple[tuple[float, ...], ...] | None
    backs: tuple[dict[int, float], ...]
    back_min_ms: float
    hop_min_ms: tuple[float, ...]
    num_layers: int


def cheapest(
    graph: Graph,
    lows: Sequence[float],
    *,
    carried: float,
    back_share: float,
    limit: float = INFINITE,
) -> tuple[float, tuple[int, ...]] | None:
    """The least total below `limit` and its groups, or None.

    `lows[g]` is the cheapest node of g, infinite where none may be used; `carried` scales the
    extra per token, `back_share` the way back (paid once less often than a hop). One search per
    first group, because the way back depends on it; each is cut by what must still follow.
    """
    ends, nexts, num_layers = graph.ends, graph.nexts, graph.num_layers
    if graph.extras is not None:
        nexts = _with_extras(graph, graph.extras, carried)
    follow = _follow(graph, lows, back_share)
    size = len(lows)
    firsts = [
        (lows[g] + follow[ends[g]], g)
        for g in range(size)
        if graph.starts[g] == 0 and lows[g] < INFINITE
    ]
    firsts.sort()
    best, path = limit, None
    infinite, nobody = [INFINITE] * size, [-1] * size
    for least, first in firsts:
        if least >= best:
            break
        labels, before = infinite[:], nobody[:]
        labels[first] = lows[first]
        for g in range(first, size):
            label = labels[g]
            end = ends[g]
            if label + follow[end] >= best:
                continue
            if end == num_layers:
                total = label if g == first else label + back_share * graph.backs[g][first]
                if total < best:
                    best, path = total, _walk(before, g)
                continue
            for h, hop in nexts[g]:
                there = label + hop + lows[h]
                if there < labels[h]:
                    labels[h] = there
                    before[h] = g
    return (best, path) if path is not None else None


def _with_extras(
    graph: Graph, extras: tuple[tuple[float, ...], ...], carried: float
) -> tuple[tuple[tuple[int, float], ...], ...]:
    return tuple(
        [
            tuple([(h, hop + extra * carried) for (h, hop), extra in zip(arcs, more, strict=True)])
            if any(more)
            else arcs
            for arcs, more in zip(graph.nexts, extras, strict=True)
        ]
    )


def _follow(graph: Graph, lows: Sequence[float], back_share: float) -> list[float]:
    """By boundary: no chain goes on from there for less."""
    follow = [INFINITE] * (graph.num_layers + 1)
    # A chain of one stage has no way back.
    follow[graph.num_layers] = 0.0
    back, hop_min = back_share * graph.back_min_ms, graph.hop_min_ms
    starts, ends, num_layers = graph.starts, graph.ends, graph.num_layers
    for g in range(len(lows) - 1, -1, -1):
        start = starts[g]
        if start == 0:
            break
        end = ends[g]
        least = lows[g] + hop_min[start] + (back if end == num_layers else follow[end])
        if least < follow[start]:
            follow[start] = least
    return follow


def _walk(before: list[int], last: int) -> tuple[int, ...]:
    groups = [last]
    while before[groups[-1]] >= 0:
        groups.append(before[groups[-1]])
    return tuple(groups[::-1])
