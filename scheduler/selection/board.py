"""The exact chain over whole spans: everything that requests share is prepared beforehand.

Nodes of the same span in the same region differ by their own cost alone, so only the cheapest of
each such group matters, and the search is over groups. A node's cost is linear in the lengths of
prompt and answer. Where a fast uplink meets a slower downlink the groups are split by both, and
searched again below what was found.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from plait.types import LayerSpan, NodeId, Route, Stage
from scheduler.cost import Links, StageCost
from scheduler.selection.candidates import Candidate, Load, Query, Told, slowdown
from scheduler.selection.groups import INFINITE, Graph, cheapest, graph_of
from scheduler.selection.places import Places, bandwidths_of, regions_of
from scheduler.selection.rows import (
    KV_CAP_TOKENS,
    Base,
    Paced,
    Place,
    Row,
    base,
    costs_of,
    front,
    paced,
    per_trip,
    row,
)

BANDWIDTHS_MAX: Final = 1e18
"""Bytes/s: faster than any link."""
Key = tuple[LayerSpan, int, float, float]
"""Span, region, uplink where it matters, downlink where it matters."""


@dataclass(frozen=True, slots=True)
class _Slices:
    """Rows laid out group by group: where each one's are in `order`."""

    order: list[int]
    fine: list[slice]
    coarse: list[slice]


class Board:
    """Nodes of one model that may carry routes, as they are now; `update` takes in news of one."""

    def __init__(
        self, candidates: Sequence[Candidate], links: Links, *, num_layers: int, hop_bytes: int
    ) -> None:
        self._num_layers = num_layers
        self._hop_ms_per_bps = 1e3 * hop_bytes
        self._links = links
        ids = [c.node_id for c in candidates]
        self._regions = regions_of(ids, links)
        self._measured = links.measured_bytes_per_s()
        self._up = bandwidths_of(ids, links, self._measured)
        keys = self._keys(candidates)
        self._is_mixed = bool(self._measured) or any(up > 0.0 for _, _, up, _ in keys)
        by_key = sorted(range(len(ids)), key=lambda i: (keys[i], ids[i]))
        self._candidates = [candidates[i] for i in by_key]
        self._up = [self._up[i] for i in by_key]
        self._regions = [self._regions[i] for i in by_key]
        self._shown_by_region = {region: i for i, (region, _) in enumerate(self._regions)}
        self._index = {c.node_id: i for i, c in enumerate(self._candidates)}
        self._stages = [Stage(c.node_id, c.incarnation, c.span) for c in self._candidates]
        self.places = [self._place(i, c.node_id) for i, c in enumerate(self._candidates)]
        self.bases: list[Base] = [
            base(c.cost, c.span, num_layers, self.places[i]) for i, c in enumerate(self._candidates)
        ]
        self.loads: list[Told] = [c.load for c in self._candidates]
        self.slows: list[float] = [slowdown(c.cost, len(c.span), c.load) for c in self._candidates]
        self.paced: list[Paced] = list(map(paced, self.bases, self.slows))
        self.rows: list[Row] = list(map(row, self.bases, self.loads, self.slows, self.paced))
        self.news: set[int] = set()
        """Rows that were told of and are not reckoned with yet."""
        self.repaced: list[int] = []
        """Those of the last news that are quicker or slower than before."""
        self.listeners: list[Callable[[Collection[int]], None]] = []
        """Told which rows are others than before, whoever has the board reckon with its news."""
        self._untold: set[int] = set()
        keys = [keys[i] for i in by_key]
        self._fine = _bounds(keys)
        self._coarse = _bounds([key[:2] for key in keys])
        self._fine_of_coarse = _parents(self._fine, self._coarse)
        self._coarse_graph = self._graph(self._coarse, is_fine=False)
        self._fine_graph: Graph | None = None
        self._fronts: list[list[int]] = [[] for _ in self._fine]
        self._group_of = [g for g, (i, j) in enumerate(self._fine) for _ in range(i, j)]
        self._stale: set[int] = set(range(len(ids)))
        self._slices = _Slices([], [], [])
        self._all_slices = _Slices(
            list(range(len(ids))),
            [slice(*bounds) for bounds in self._fine],
            [slice(*bounds) for bounds in self._coarse],
        )
        self._shown: list[Row] = []
        self._least_kv = 0

    @property
    def is_aligned(self) -> bool:
        """Whether no span holds another's boundary in its inside: then parts of spans gain
        nothing, and the board's answer is the best of all."""
        cuts = sorted({c.span.start for c in self._candidates})
        cuts += sorted({c.span.end for c in self._candidates})
        spans = {c.span for c in self._candidates}
        return not any(s.start < cut < s.end for s in spans for cut in cuts)

    @property
    def candidates(self) -> Sequence[Candidate]:
        """In the board's own order, as they were last told of."""
        self.take_in()
        for i in self._untold:
            self._candidates[i] = replace(self._candidates[i], **Load(*self.loads[i])._asdict())
        self._untold.clear()
        return self._candidates

    def index(self, node_id: NodeId) -> int | None:
        """A node's place in `candidates` and `rows`."""
        return self._index.get(node_id)

    def update(self, candidate: Candidate) -> int | None:
        """News of a node. None: it is not on the board, or holds other layers or has other costs
        than before (then a new board is due)."""
        index = self._index.get(candidate.node_id)
        if index is None:
            return None
        known = self._candidates[index]
        if (known.span, known.incarnation) != (candidate.span, candidate.incarnation):
            return None
        if known.cost != candidate.cost:
            self._candidates[index] = candidate
            self.bases[index] = base(
                candidate.cost, candidate.span, self._num_layers, self.places[index]
            )
            self.paced[index] = paced(self.bases[index], self.slows[index])
        self.tell(candidate.node_id, candidate.load)
        return index

    def tell(self, node_id: NodeId, load: Told) -> bool:
        """News of a node's load, reckoned with when it is next needed. False: not on the board."""
        index = self._index.get(node_id)
        if index is None:
            return False
        self.loads[index] = load
        self.news.add(index)
        return True

    def take_in(self) -> None:
        """Reckon with the news, and tell the listeners."""
        news = self.news
        if not news:
            return
        self.news = set()
        self.repaced.clear()
        loads, slows = self.loads, self.slows
        for i in news:
            load = loads[i]
            slow = 1.0
            if load[3] > 0.0:
                known = self._candidates[i]
                slow = slowdown(known.cost, len(known.span), load)
            if slow != slows[i]:
                slows[i] = slow
                self.paced[i] = paced(self.bases[i], slow)
                self.repaced.append(i)
        self._stale.update(news)
        self._untold.update(news)
        for hear in self.listeners:
            hear(news)

    def best(self, query: Query, excluded: Collection[NodeId] = ()) -> "Found | None":
        """The cheapest chain of whole spans with room on every stage, or None."""
        steps = max(1, query.new_tokens)
        share = 1.0 / (1 + steps)
        prompt, new = query.prompt_tokens * share, steps * share
        carried = prompt + new
        if self.news:
            self.take_in()
        if self._stale:
            self._refresh()
        slices, need = self._slices, min(KV_CAP_TOKENS, query.kv_tokens)
        if excluded:  # after the rows are as new as the loads
            costs = self._without(excluded, need, share, prompt)
            slices = self._all_slices
        elif need <= self._least_kv:
            costs = [f * share + p * prompt + s for f, p, s, _ in self._shown]
        else:
            costs = costs_of(self._shown, need, share, prompt)
        lows = list(map(min, map(costs.__getitem__, slices.coarse)))
        found = cheapest(self._coarse_graph, lows, carried=carried, back_share=new)
        if found is None:
            return None
        total, groups = found
        path = _members(groups, slices.coarse, costs, lows, slices.order)
        excess = self._excess(path) if self._is_mixed else 0.0
        if excess > 0.0:
            bound = total + excess * carried
            lows = [min(costs[own], default=INFINITE) for own in slices.fine]
            better = cheapest(self._finer(), lows, carried=carried, back_share=new, limit=bound)
            total = bound
            if better is not None:
                total, groups = better
                path = _members(groups, slices.fine, costs, lows, slices.order)
        return Found(path, total * (1 + steps))

    def route(self, path: Sequence[int]) -> Route:
        """The stages of a path."""
        return tuple([self._stages[i] for i in path])

    def part_route(self, hands: Sequence[tuple[int, int]]) -> Route:
        """The stages of nodes that run up to a boundary each."""
        stages, at = [], 0
        for i, end in hands:
            stages.append(replace(self._stages[i], span=LayerSpan(at, end)))
            at = end
        return tuple(stages)

    def base_of(self, index: int, span: LayerSpan) -> Base:
        """A node that runs only `span` of what it holds."""
        return base(self._candidates[index].cost, span, self._num_layers, self.places[index])

    def stage(self, index: int) -> Stage:
        """A node and all it holds."""
        return self._stages[index]

    def cost(self, index: int) -> StageCost:
        """What a node's work takes it."""
        return self._candidates[index].cost

    @property
    def num_regions(self) -> int:
        """Places that hops are told apart by."""
        return len(self._shown_by_region)

    def region(self, index: int) -> int:
        """Where a node is."""
        return self._regions[index][0]

    def excess_ms(self, a: int, b: int) -> float:
        """Ms per token that a hop costs beyond the uplink it starts at."""
        up, down = self._up[a][0], self._up[b][1]
        if self._measured:
            one, two = self._candidates[a].node_id, self._candidates[b].node_id
            down = self._measured.get((one, two), min(self._links.up_bytes_per_s(one), down))
        return self._hop_ms_per_bps * (1 / down - 1 / up) if down < up else 0.0

    def bandwidths(self) -> tuple[list[float], list[float]]:
        """Bytes/s of uplinks, and of downlinks: `excess_ms` is 0 where the latter is no less.
        0 where hops were measured one by one."""
        return [u for u, _ in self._up], [0.0 if self._measured else d for _, d in self._up]

    def trip(self, path: Sequence[int]) -> tuple[float, float, float]:
        """Hops of a path beyond what its rows hold: fixed ms, per prompt token, per new token."""
        forward_ms = sum(self._half_rtt_ms(a, b) for a, b in pairwise(path))
        back_ms = self._half_rtt_ms(path[-1], path[0]) if len(path) > 1 else 0.0
        excess = self._excess(path)
        return forward_ms, excess, forward_ms + back_ms + excess

    # --- what is prepared ---------------------------------------------------------------------

    def _refresh(self) -> None:
        for i in self._stale:
            self.rows[i] = row(self.bases[i], self.loads[i], self.slows[i], self.paced[i])
        for g in {self._group_of[i] for i in self._stale}:
            i, j = self._fine[g]
            self._fronts[g] = front(self.rows, range(i, j))
        self._stale.clear()
        order: list[int] = []
        fine: list[slice] = []
        for kept in self._fronts:
            fine.append(slice(len(order), len(order) + len(kept)))
            order += kept
        coarse = [slice(fine[i].start, fine[j - 1].stop) for i, j in self._fine_of_coarse]
        self._slices = _Slices(order, fine, coarse)
        self._shown = [per_trip(self.rows[i]) for i in order]
        self._least_kv = min([free for _, _, _, free in self._shown], default=0)

    def _without(
        self, excluded: Collection[NodeId], need: int, share: float, prompt: float
    ) -> list[float]:
        """Costs of all rows: one that was beaten may be the best left."""
        costs = costs_of(list(map(per_trip, self.rows)), need, share, prompt)
        for node_id in excluded:
            index = self._index.get(node_id)
            if index is not None:
                costs[index] = INFINITE
        return costs

    def _keys(self, candidates: Sequence[Candidate]) -> list[Key]:
        """Bandwidths tell nodes apart only where some uplink is faster than some downlink."""
        slowest = min((down for _, down in self._up), default=0.0)
        quickest = max((up for up, _ in self._up), default=0.0)
        return [
            (
                candidate.span,
                self._regions[i][0],
                up if up > slowest else 0.0,
                down if down < quickest else BANDWIDTHS_MAX,
            )
            for i, (candidate, (up, down)) in enumerate(zip(candidates, self._up, strict=True))
        ]

    def _place(self, i: int, node_id: NodeId) -> Place:
        return Place(
            mile_ms=self._regions[i][1],
            coordinator_rtt_ms=self._links.coordinator_rtt_ms(node_id),
            sent_ms_per_token=self._hop_ms_per_bps / self._up[i][0],
        )

    def _half_rtt_ms(self, a: int, b: int) -> float:
        """Between the regions of two nodes: what their last miles leave of the round trip."""
        one, two = self._candidates[a].node_id, self._candidates[b].node_id
        miles = self._regions[a][1] + self._regions[b][1]
        return max(0.0, self._links.rtt_ms(one, two) - miles) / 2

    def _excess(self, path: Sequence[int]) -> float:
        return sum(self.excess_ms(a, b) for a, b in pairwise(path))

    def _finer(self) -> Graph:
        if self._fine_graph is None:
            self._fine_graph = self._graph(self._fine, is_fine=True)
        return self._fine_graph

    def _graph(self, bounds: Sequence[tuple[int, int]], *, is_fine: bool) -> Graph:
        firsts = [i for i, _ in bounds]
        half: dict[tuple[int, int], float] = {}

        def hop_ms(g: int, h: int) -> float:
            pair = (self._regions[firsts[g]][0], self._regions[firsts[h]][0])
            # Two nodes of one region: any two of them show its round trip.
            if pair not in half:
                half[pair] = self.region_half_ms(*pair)
            return half[pair]

        def extra_ms(g: int, h: int) -> float:
            return self.excess_ms(firsts[g], firsts[h])

        spans = [self._candidates[i].span for i in firsts]
        return graph_of(spans, self._num_layers, hop_ms, extra_ms if is_fine else None)

    def region_half_ms(self, a: int, b: int) -> float:
        """Half the round trip between two regions, without last miles."""
        if isinstance(self._links, Places):
            return self._links.region_rtt_ms[a][b] / 2
        if a == b:
            # Nodes that nobody measured: all of the way is last miles. A measured one is alone.
            return 0.0
        return self._half_rtt_ms(self._shown_by_region[a], self._shown_by_region[b])


class Found(NamedTuple):
    """A path as places on the board, and what it takes from first to last token."""

    path: tuple[int, ...]
    total_ms: float


def _bounds(keys: Sequence[object]) -> list[tuple[int, int]]:
    bounds: list[tuple[int, int]] = []
    at = 0
    for i in range(1, len(keys) + 1):
        if i == len(keys) or keys[i] != keys[at]:
            bounds.append((at, i))
            at = i
    return bounds


def _parents(
    fine: Sequence[tuple[int, int]], coarse: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """By coarse group, the [from, to) of the fine ones that make it up."""
    found: list[tuple[int, int]] = []
    at = 0
    for _, end in coarse:
        first = at
        while at < len(fine) and fine[at][1] <= end:
            at += 1
        found.append((first, at))
    return found


def _members(
    groups: Sequence[int],
    bounds: Sequence[slice],
    costs: Sequence[float],
    lows: Sequence[float],
    order: Sequence[int],
) -> tuple[int, ...]:
    return tuple([order[costs.index(lows[g], bounds[g].start)] for g in groups])
