"""Clusters whose nodes' throughput is known per number of layers: what is planned, and its flow.

A node of type t with k layers carries at most `table[t][k]` tokens/s, a link its own capacity; a
placement carries the largest flow from source to sink (the model of Helix, arXiv 2406.01566).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Spans = Mapping[int, tuple[int, int]]
"""Node index to [start, end)."""
EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`table[t][k]` tokens/s (NIC included), `kinds` the type of each node, `links[(i, j)]`
    tokens/s of hops, `entry` and `leave` tokens/s from the source and to the sink."""

    num_layers: int
    types: tuple[str, ...]
    table: tuple[Mapping[int, float], ...]
    node_ids: tuple[str, ...]
    kinds: tuple[int, ...]
    links: Mapping[tuple[int, int], float]
    entry: Mapping[int, float]
    leave: Mapping[int, float]


def placement_flow(cluster: Cluster, spans: Spans) -> float:
    """Tokens/s that a placement carries: maximum flow (Dinic, 1970)."""
    network = _Network(2 * len(cluster.node_ids) + 2)
    source, sink = network.size - 2, network.size - 1
    for i, (start, end) in spans.items():
        network.add(2 * i, 2 * i + 1, cluster.table[cluster.kinds[i]].get(end - start, 0.0))
        if start == 0:
            network.add(source, 2 * i, cluster.entry.get(i, 0.0))
        if end == cluster.num_layers:
            network.add(2 * i + 1, sink, cluster.leave.get(i, 0.0))
        for j, (start_j, _) in spans.items():
            if i != j and end == start_j:
                network.add(2 * i + 1, 2 * j, cluster.links.get((i, j), 0.0))
    return network.flow(source, sink)


def depth(cluster: Cluster, spans: Spans) -> int:
    """Stages on the longest way from the first layer to the last."""
    longest: dict[int, int] = {0: 0}
    for start, end in sorted(set(spans.values())):
        if start in longest:
            longest[end] = max(longest.get(end, 0), longest[start] + 1)
    return longest.get(cluster.num_layers, 0)


def regions_of(cluster: Cluster, rate: float) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes between which no link binds at `rate` tokens/s."""
    parent = list(range(len(cluster.node_ids)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for (i, j), capacity in cluster.links.items():
        if capacity >= rate and cluster.links.get((j, i), 0.0) >= rate:
            parent[max(root(i), root(j))] = min(root(i), root(j))
    groups: dict[int, list[int]] = {}
    for i in range(len(parent)):
        groups.setdefault(root(i), []).append(i)
    return tuple(tuple(group) for _, group in sorted(groups.items()))


class _Network:
    """Capacities as lists of arcs; an arc's twin is its index xor 1."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._out: list[list[int]] = [[] for _ in range(size)]
        self._to: list[int] = []
        self._left: list[float] = []

    def add(self, a: int, b: int, capacity: float) -> None:
        for start, end, room in ((a, b, capacity), (b, a, 0.0)):
            self._out[start].append(len(self._to))
            self._to.append(end)
            self._left.append(room)

    def flow(self, source: int, sink: int) -> float:
        total = 0.0
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return total
            at = [0] * self.size
            while (pushed := self._push(source, sink, float("inf"), level, at)) > EPSILON:
                total += pushed

    def _levels(self, source: int) -> list[int]:
        level = [-1] * self.size
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for arc in self._out[node]:
                if self._left[arc] > EPSILON and level[self._to[arc]] < 0:
                    level[self._to[arc]] = level[node] + 1
                    queue.append(self._to[arc])
        return level

    def _push(self, node: int, sink: int, room: float, level: list[int], at: list[int]) -> float:
        if node == sink:
            return room
        while at[node] < len(self._out[node]):
            arc = self._out[node][at[node]]
            other = self._to[arc]
            if self._left[arc] > EPSILON and level[other] == level[node] + 1:
                pushed = self._push(other, sink, min(room, self._left[arc]), level, at)
                if pushed > EPSILON:
                    self._left[arc] -= pushed
                    self._left[arc ^ 1] += pushed
                    return pushed
            at[node] += 1
        return 0.0
