"""Links between regions: where ways must cross them, and which node had better stand where."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Final

from scheduler.planning.cluster import Cluster, placement_flow
from scheduler.planning.stages import Crossings

Placed = dict[int, tuple[int, int]]
Regions = Sequence[Sequence[int]]
FLOWS_MAX: Final = 600
GAIN: Final = 1.0 + 1e-9


def crossings_of(cluster: Cluster, regions: Regions, share: float) -> Crossings | None:
    """One crossing less than regions, over links as good as that share of those between regions;
    None where there are none."""
    region_of = {i: region for region, nodes in enumerate(regions) for i in nodes}
    between = sorted(
        rate for (i, j), rate in cluster.links.items() if region_of[i] != region_of[j] and rate > 0
    )
    if not between:
        return None
    return Crossings(len(regions) - 1, between[min(len(between) - 1, int(share * len(between)))])


def must_cross(cluster: Cluster, rate: float) -> bool:
    """Whether more than `rate` tokens/s need layers of several groups of nodes, between any two of
    which no link carries that much."""
    groups = list(range(len(cluster.kinds)))
    for (i, j), link in cluster.links.items():
        if link > rate and groups[i] != groups[j]:
            known, other = groups[i], groups[j]
            groups = [known if group == other else group for group in groups]
    for group in set(groups):
        own = [cluster.table[kind] for i, kind in enumerate(cluster.kinds) if groups[i] == group]
        # Layers of the rate that the group's nodes carry at most, each with its best number.
        most = sum(
            max((k * min(1.0, t / rate) for k, t in t_of.items()), default=0.0) for t_of in own
        )
        if most >= cluster.num_layers * (1.0 - 1e-9):
            return False
    return True


def improved(cluster: Cluster, spans: Placed, target: float) -> tuple[float, Placed]:
    """Hill climbing: two nodes swap what they hold, or one joins another's stage, while the flow
    grows; no further than `target`, and within FLOWS_MAX looks."""
    flow, best = placement_flow(cluster, spans), dict(spans)
    looks = 0
    nodes = range(len(cluster.kinds))
    while True:
        before = flow
        for a, b in permutations(nodes, 2):
            for changed in _changed(cluster, best, a, b):
                if flow * GAIN >= target or looks >= FLOWS_MAX:
                    return flow, best
                looks += 1
                found = placement_flow(cluster, changed)
                if found > flow * GAIN:
                    flow, best = found, changed
        if flow <= before * GAIN:
            return flow, best


def _changed(cluster: Cluster, spans: Placed, a: int, b: int) -> Iterator[Placed]:
    """Node a in b's stage, then the two the other way round; stages stay what they are."""
    theirs, own = spans.get(b), spans.get(a)
    if theirs is None or theirs == own or not _fits(cluster, a, theirs):
        return
    yield {**spans, a: theirs}
    if a < b and own is not None and _fits(cluster, b, own):
        yield {**spans, a: theirs, b: own}
    if own is None:
        yield {**{i: span for i, span in spans.items() if i != b}, a: theirs}


def _fits(cluster: Cluster, i: int, span: tuple[int, int]) -> bool:
    return span[1] - span[0] in cluster.table[cluster.kinds[i]]
