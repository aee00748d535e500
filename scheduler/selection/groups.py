"""The cheapest path over groups of nodes that hold the same layers in the same place.

Costs are per token and hop of the ring: a request's milliseconds divided by its number of trips,
so that hops need no scaling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Final, NamedTuple

from plait.types import LayerSpan

INFINITE = float("inf")
ROUNDING: Final = 1e-12
"""Of a total: sums in another order may differ by so much."""


class Arcs(NamedTuple):
    """Groups that may follow, side by side, and half a round trip to each in ms."""

    to: slice
    hops: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Groups in ascending order of the boundary they start at.

    `nexts[g]` lead to every group that starts where g ends, `extras[g]` is the extra ms per token
    carried there, where links differ; `backs[g][h]` half the round trip from last g to first h,
    `shortest[g]` the least of them.
    """

    nexts: tuple[Arcs, ...]
    extras: tuple[tuple[float, ...], ...] | None
    backs: tuple[dict[int, float], ...]
    shortest: tuple[float, ...]
    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    between: tuple[int, ...]
    """All others that lead on, the last one first."""
    dead: tuple[int, ...]
    """Those that lead nowhere."""


def graph_of(
    spans: Sequence[LayerSpan],
    num_layers: int,
    hop_ms: Callable[[int, int], float],
    extra_ms: Callable[[int, int], float] | None,
) -> Graph:
    """Of groups with these spans, in ascending order. `hop_ms` is half a round trip between two of
    them, `extra_ms` what a token carried there costs beyond the uplink."""
    by_start: dict[int, list[int]] = {}
    for g, span in enumerate(spans):
        by_start.setdefault(span.start, []).append(g)
    groups = range(len(spans))
    after = [by_start.get(span.end, []) for span in spans]
    starting = by_start.get(0, [])
    lasts = [g for g in groups if spans[g].end == num_layers]
    backs: list[dict[int, float]] = [{} for _ in groups]
    for g in lasts:
        # A chain of one stage has no way back.
        backs[g] = {h: hop_ms(g, h) if h != g else 0.0 for h in starting}
    extras = None
    if extra_ms is not None:
        extras = tuple(tuple([extra_ms(g, h) for h in after[g]]) for g in groups)
    return Graph(
        nexts=tuple(
            Arcs(
                slice(after[g][0], after[g][-1] + 1) if after[g] else slice(0),
                tuple([hop_ms(g, h) for h in after[g]]),
            )
            for g in groups
        ),
        extras=extras,
        backs=tuple(backs),
        shortest=tuple(min(back.values(), default=0.0) for back in backs),
        firsts=tuple(starting),
        lasts=tuple(lasts),
        between=tuple(g for g in reversed(groups) if after[g] and spans[g].start > 0),
        dead=tuple(g for g in groups if not after[g] and spans[g].end != num_layers),
    )


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
    extra per token, `back_share` the way back (paid once less often than a hop). Summed up from
    the end, with the shortest way back of each last group: the chain that follows from it is the
    best one unless its way back is a longer one; then others from its first group are looked at.
    """
    nexts = graph.nexts
    if graph.extras is not None:
        nexts = _with_extras(graph, graph.extras, carried)
    rest = list(lows)
    for g in graph.lasts:
        rest[g] += back_share * graph.shortest[g]
    for g in graph.dead:
        rest[g] = INFINITE
    for g in graph.between:
        to, hops = nexts[g]
        rest[g] += min(map(add, hops, rest[to]))
    leasts = []
    for g in graph.firsts:
        to, hops = nexts[g]
        least = lows[g] + min(map(add, hops, rest[to])) if hops else rest[g]
        leasts.append((least, g))
    leasts.sort()
    best, path = limit, None
    for least, first in leasts:
        if least >= best:
            break
        groups = _straight(nexts, rest, first)
        last = groups[-1]
        total = least + back_share * (graph.backs[last][first] - graph.shortest[last])
        if total < best:
            best, path = total, groups
        if total - least > ROUNDING * total:
            better = _around(graph, nexts, lows, rest, (first, back_share, best))
            if better is not None:
                best, path = better
    return (best, path) if path is not None else None


def _straight(nexts: Sequence[Arcs], rest: Sequence[float], first: int) -> tuple[int, ...]:
    """The groups that the least costs lead through."""
    groups = [first]
    to, hops = nexts[first]
    while hops:
        leasts = list(map(add, hops, rest[to]))
        at = to.start + leasts.index(min(leasts))
        groups.append(at)
        to, hops = nexts[at]
    return tuple(groups)


def _around(
    graph: Graph,
    nexts: Sequence[Arcs],
    lows: Sequence[float],
    rest: Sequence[float],
    asked: tuple[int, float, float],
) -> tuple[float, tuple[int, ...]] | None:
    """The best of all chains that begin with one group and stay below a limit."""
    first, back_share, best = asked
    path = None
    labels, before = [INFINITE] * len(lows), [-1] * len(lows)
    labels[first] = lows[first]
    for g in range(first, len(lows)):
        label = labels[g]
        if label == INFINITE:
            continue
        to, hops = nexts[g]
        if not hops:
            back = graph.backs[g]
            total = label + back_share * back[first] if back else INFINITE
            if total < best:
                best, path = total, _walk(before, g)
            continue
        for h, hop in enumerate(hops, to.start):
            there = label + hop
            if there + rest[h] < best and there + lows[h] < labels[h]:
                labels[h] = there + lows[h]
                before[h] = g
    return (best, path) if path is not None else None


def _with_extras(
    graph: Graph, extras: tuple[tuple[float, ...], ...], carried: float
) -> tuple[Arcs, ...]:
    return tuple(
        [
            Arcs(
                arcs.to,
                tuple([hop + extra * carried for hop, extra in zip(arcs.hops, more, strict=True)]),
            )
            if any(more)
            else arcs
            for arcs, more in zip(graph.nexts, extras, strict=True)
        ]
    )


def _walk(before: list[int], last: int) -> tuple[int, ...]:
    groups = [last]
    while before[groups[-1]] >= 0:
        groups.append(before[groups[-1]])
    return tuple(groups[::-1])
