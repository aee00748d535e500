"""A bound that no plan of a pool exceeds, whatever its chains, orders and splits.

Prices p of machines with X(S) <= sum of p over S, for every chain over every set S of machines,
make sum p a bound (LP duality). They are found by column generation, and proved by a scan over all
mixes of kinds (`_ceiling_pieces.py`) and all sets of regions: hops cost a machine its last mile,
half the round trip within its region, and its uplink but for the last stage's, and a set of regions
the shortest way over all of them. All of it adds up over machines, so at a piece's slope the
cheapest machines of a mix are the first of a sorted list. Chains too long to be scanned carry at
most what their KV allows at the least time round; that is a lower limit of prices.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks._ceiling_pieces import BATCHES, LEVEL, Mixes, Pieces, join, kinds_of, mixes
from scheduler.planning.ground import Ground
from scheduler.planning.master import Master
from scheduler.planning.patterns import Pattern
from scheduler.planning.table import Floats, Ints

SLOPE_STEP: Final = 1.15
TURNS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LEAST: Final = 0.05
"""Tokens/s that every machine is priced at least: chains of less are of no interest."""
COLUMNS: Final = 400
ROUNDS: Final = 60
SMOOTH: Final = 0.6
"""Share of the best prices so far in the prices that are tried."""
ENOUGH: Final = 2e-3
LIMIT_S: Final = 120.0
MACHINES_MAX: Final = 24
MIXES_MAX: Final = 130_000
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Proof:
    """A rate that no plan exceeds, the prices that prove it, and how many pieces of a mix in a set
    of regions were scanned."""

    most: float
    prices: tuple[float, ...]
    rows: int


def prove(ground: Ground, *, machines_max: int = MACHINES_MAX, rounds: int = ROUNDS) -> Proof:
    """Chains up to `machines_max` machines are scanned by mixes, longer ones bounded together."""
    machines_max = _able(ground, machines_max)
    scan = Scan(ground, machines_max)
    least = scan.least
    master = Master([1] * len(least), time_limit_s=LIMIT_S)
    master.join([Pattern((i,), (), float(v), 0.0) for i, v in enumerate(least) if v > 0.0])
    known: dict[tuple[int, ...], float] = {}
    best, best_prices, smooth = math.inf, least, 0.0
    for _ in range(rounds):
        value, found = master.solve()
        prices = np.maximum(least, np.array(found))
        prices = smooth * best_prices + (1.0 - smooth) * prices
        missing, columns = scan.priced(prices)
        proved = float(prices.sum()) / (1.0 - missing) if missing < 1.0 else math.inf
        if proved < best:
            best, best_prices = proved, prices / (1.0 - missing)
        fresh = [c for c in columns if c.rate > known.get(c.order, 0.0) * (1.0 + 1e-6)]
        if best <= value * (1.0 + ENOUGH) or (not fresh and not smooth):
            break
        smooth = SMOOTH if fresh and math.isfinite(best) else 0.0
        known.update((c.order, c.rate) for c in fresh)
        master.join(fresh)
    prices = best_prices * (1.0 + ROUNDING)
    return Proof(float(prices.sum()), tuple(map(float, prices)), scan.rows)


def _able(ground: Ground, machines_max: int) -> int:
    """So many machines of a chain that their mixes can be listed."""
    num_kinds = len(kinds_of(ground))
    most = min(machines_max, len(ground.machines))
    while most > 1 and math.comb(most + num_kinds, num_kinds) > MIXES_MAX:
        most -= 1
    return most


class Scan:
    """All chains of a ground, as rows of a piece and a set of regions."""

    def __init__(self, ground: Ground, machines_max: int) -> None:
        machines = ground.machines
        self._ground = ground
        self._kinds = kinds_of(ground)
        self._near_s = np.array(
            [m.last_mile_s + ground.region_rtt_s[m.region][m.region] / 2 for m in machines]
        )
        self._link_s = np.array([ground.activation_bytes / m.up_bytes_per_s for m in machines])
        self._region = np.array([m.region for m in machines])
        self._supports = _supports(ground, sorted(set(self._region)))
        alone = self._alone()
        self.least = np.maximum(LEAST, np.maximum(alone, self._long(machines_max)))
        self._of = self._bounded(machines_max)
        self._piece, self._support = self._pairs(self._of)
        self._slope = self._of.slope[self._piece]
        least = float(self._slope.min(initial=1.0)) * min(TURNS)
        most = float(self._slope.max(initial=1.0))
        count = max(2, math.ceil(math.log(most / least) / math.log(SLOPE_STEP)))
        self._slopes = np.concatenate([[0.0], np.geomspace(least, most * (1.0 + 1e-9), count)])
        self._extra = np.array([extra for _, extra in self._supports])[self._support]
        self.rows = len(self._piece)

    def _members(self, support: int, kind: int) -> Ints:
        regions = self._supports[support][0]
        own = np.array(self._kinds[kind].members, dtype=np.int64)
        return own[np.isin(self._region[own], regions)]

    def _alone(self) -> Floats:
        """What every machine carries as a whole chain, at most."""
        eye = np.eye(len(self._kinds), dtype=np.int64)
        bounds = Mixes(self._ground, self._kinds, eye, *np.zeros((2, len(eye))))
        found = np.zeros(len(self._ground.machines))
        if not len(bounds.mix):
            return found
        for low, high in itertools.pairwise(_levels(bounds)):
            pieces = bounds.pieces(low, high)
            for mix, most in zip(
                pieces.mix, pieces.low + pieces.slope * pieces.hops_s_max, strict=True
            ):
                own = list(self._kinds[int(mix.argmax())].members)
                found[own] = np.maximum(found[own], min(high, most))
        return found

    def _long(self, machines_max: int) -> Floats:
        """Shares of what any chain of more machines carries: sequences <= KV / layers, and all
        of them go round."""
        ground, number = self._ground, machines_max + 1
        longest: list[float] = []
        for regions, extra in self._supports:
            near = np.sort(self._near_s[np.isin(self._region, regions)])
            if len(near) >= number:
                longest.append(extra + float(near[:number].sum()))
        if not longest:
            return np.zeros(len(ground.machines))
        curves = [kind.machine.curve for kind in self._kinds]
        trip = min(longest) + number * min(c.overhead_s for c in curves)
        trip += ground.num_layers * min(c.layer_s(1.0) for c in curves)
        trip += min(c.head_read_s for c in curves) + (number - 1) * float(self._link_s.min())
        kv = np.array(
            [
                (m.room_bytes if m.kv_bytes is None else m.kv_bytes) / m.kv_sequence_bytes
                for m in ground.machines
            ]
        )
        return kv / (ground.num_layers * trip)

    def _bounded(self, machines_max: int) -> Pieces:
        mix = mixes(self._kinds, min(machines_max, len(self._ground.machines)))
        mix = mix[mix.sum(axis=1) > 1]
        near = [float(self._near_s[list(k.members)].min()) for k in self._kinds]
        hops_s = mix @ np.array(near) + (mix.sum(axis=1) - 1) * float(self._link_s.min())
        # What the least prices cover needs no scan.
        floor = np.array([float(self.least[list(k.members)].min()) for k in self._kinds])
        bounds = Mixes(self._ground, self._kinds, mix, hops_s, mix @ floor)
        found = [bounds.pieces(*ends) for ends in itertools.pairwise(_levels(bounds))]
        return join(found) if found else bounds.pieces(1.0, LEVEL)

    def _pairs(self, pieces: Pieces) -> tuple[Ints, Ints]:
        """Pieces with sets of regions: those where some chain's hops are the piece's."""
        piece: list[Ints] = []
        support: list[Ints] = []
        for at, (_, extra) in enumerate(self._supports):
            short = np.full(len(pieces.mix), extra)
            is_able = np.ones(len(pieces.mix), dtype=bool)
            link = np.inf
            for kind in range(len(self._kinds)):
                own = self._members(at, kind)
                count = pieces.mix[:, kind]
                is_able &= count <= len(own)
                count = np.minimum(count, len(own))
                if not len(own):
                    continue
                link = min(link, float(self._link_s[own].min()))
                near = np.concatenate([[0.0], np.cumsum(np.sort(self._near_s[own]))])
                short += near[count]
            short += (pieces.mix.sum(axis=1) - 1) * link
            is_able &= short <= pieces.hops_s_max
            index = np.flatnonzero(is_able)
            piece.append(index)
            support.append(np.full(len(index), at))
        return np.concatenate(piece), np.concatenate(support)

    def priced(self, prices: Floats) -> tuple[float, list[Pattern]]:
        """The largest share by which a chain exceeds the price of its machines, and chains that
        exceed it."""
        lists = [self._lists(kind, prices) for kind in range(len(self._kinds))]
        gain = self._gain(np.arange(self.rows), lists, 1.0)
        for turn in (0.0, *TURNS):
            over = np.flatnonzero(gain > 0.0)
            gain[over] = np.minimum(gain[over], self._gain(over, lists, turn))
        ranked = np.argsort(-gain)[: 4 * COLUMNS]
        missing = max(0.0, float(gain[ranked[0]])) if len(ranked) else 0.0
        columns: dict[tuple[int, ...], Pattern] = {}
        for row in ranked:
            if gain[row] <= 0.0 or len(columns) >= COLUMNS:
                break
            for turn in (1.0, TURNS[len(TURNS) // 2], 0.0):
                column = self._column(int(row), prices, turn)
                if column.rate > columns.get(column.order, column).rate * (1.0 - 1e-9):
                    columns[column.order] = column
        return missing, list(columns.values())

    def _gain(self, rows: Ints, lists: Sequence[tuple[Floats, Floats]], turn: float) -> Floats:
        """By row the share by which a chain exceeds its price at most.

        Rates are below the piece's line, and below its upper level: so also below any line between
        the two, `turn` times as steep.
        """
        piece, support = self._piece[rows], self._support[rows]
        slope = self._slope[rows] * turn
        at = np.searchsorted(self._slopes, slope, side="right") - 1
        at = np.clip(at, 0, len(self._slopes) - 2)
        share = (slope - self._slopes[at]) / (self._slopes[at + 1] - self._slopes[at])
        cost, last = np.zeros(len(rows)), np.full(len(rows), np.inf)
        mix, batch = self._of.mix, self._of.batch
        for kind, (whole, swapped) in enumerate(lists):
            # Costs are concave in the slope: between two slopes they are no less than the chord.
            count = mix[piece, kind]
            here = (support, batch[piece, kind], at, count)
            after = (support, batch[piece, kind], at + 1, count)
            cost += (1.0 - share) * whole[here] + share * whole[after]
            swap = (1.0 - share) * swapped[here] + share * swapped[after]
            last = np.minimum(last, np.where(count > 0, swap, np.inf))
        line = self._of.high[piece]
        line = line + slope * (self._of.hops_s_min[piece] - self._extra[rows])
        gain: Floats = (line - cost - last) / self._of.low[piece]
        return gain

    def _lists(self, kind: int, prices: Floats) -> tuple[Floats, Floats]:
        """The cheapest machines of a kind by (set of regions, batch, slope, number), and what it
        adds if one of them is the last stage."""
        most = int(self._of.mix[:, kind].max(initial=0))
        shape = (len(self._supports), len(BATCHES), len(self._slopes), most + 1)
        whole, swapped = np.zeros(shape), np.zeros(shape)
        slopes = self._slopes[:, None]
        for support in range(shape[0]):
            own = self._members(support, kind)
            if not len(own):
                continue
            near = prices[own] + slopes * self._near_s[own]
            count = min(most, len(own))
            for batch, size in enumerate(BATCHES):
                link = slopes * size * self._link_s[own]
                order = np.argsort(near + link, axis=1, kind="stable")
                ranked = np.take_along_axis(near + link, order, axis=1)
                total = np.cumsum(ranked[:, :count], axis=1)
                # The last is one of the first, or comes in for the last of them.
                links = np.take_along_axis(link, order, axis=1)
                inside = -np.maximum.accumulate(links, axis=1)[:, :count]
                behind = np.take_along_axis(near, order, axis=1)[:, ::-1]
                behind = np.minimum.accumulate(behind, axis=1)[:, ::-1][:, :count]
                whole[support, batch, :, 1 : count + 1] = total
                swapped[support, batch, :, 1 : count + 1] = np.minimum(
                    inside, behind - ranked[:, :count]
                )
        return whole, swapped

    def _column(self, row: int, prices: Floats, turn: float) -> Pattern:
        """The chain of a row that exceeds its price most."""
        piece, support = int(self._piece[row]), int(self._support[row])
        pieces = self._of
        slope = float(pieces.slope[piece]) * turn
        chosen: list[int] = []
        link_s: list[float] = []
        best, swap = 0.0, (-1, -1)
        for kind, count in enumerate(pieces.mix[piece]):
            if not count:
                continue
            own = self._members(support, kind)
            link = BATCHES[int(pieces.batch[piece, kind])] * self._link_s[own]
            near = prices[own] + slope * self._near_s[own]
            order = np.argsort(near + slope * link, kind="stable")
            first = len(chosen)
            chosen += [int(own[i]) for i in order[:count]]
            link_s += [float(link[i]) for i in order[:count]]
            costs = [float(near[i] + slope * link[i]) for i in order[:count]]
            for place, i in [*enumerate(order[:count]), *((count - 1, i) for i in order[count:])]:
                change = float(near[i]) - costs[place]
                if change < best:
                    best, swap = change, (first + int(place), int(own[i]))
        if swap[0] >= 0:
            chosen[swap[0]], link_s[swap[0]] = swap[1], 0.0
        else:
            link_s[0] = 0.0
        hops_s = self._supports[support][1] + sum(link_s) + float(self._near_s[chosen].sum())
        rate = pieces.high[piece] + float(pieces.slope[piece]) * min(
            0.0, pieces.hops_s_min[piece] - hops_s
        )
        return Pattern(tuple(sorted(chosen)), (), float(rate), 0.0)


def _levels(bounds: Mixes) -> list[float]:
    """Rates from where nothing is of interest up to where nothing can be."""
    most = float((bounds.sequences / bounds.trip_s).max(initial=1.0))
    levels = [max(2 * LEAST, float(bounds.enough.min(initial=most)))]
    while levels[-1] < most:
        levels.append(levels[-1] * LEVEL)
    return levels


def _supports(ground: Ground, regions: Sequence[int]) -> list[tuple[tuple[int, ...], float]]:
    """Sets of regions, with the seconds that crossings add to a ring over all of them.

    A hop between regions counts half a round trip less what its ends count within their own; by
    way of others where that is shorter (Floyd and Warshall, 1962), never less than nothing.
    """
    rtt = np.array(ground.region_rtt_s)
    own = np.diag(rtt)
    cost: Floats = np.maximum(0.0, rtt / 2 - (own[:, None] + own[None, :]) / 4)
    np.fill_diagonal(cost, 0.0)
    for via in range(len(cost)):
        cost = np.minimum(cost, cost[:, via, None] + cost[None, via, :])
    found: list[tuple[tuple[int, ...], float]] = []
    for size in range(1, len(regions) + 1):
        for some in itertools.combinations(regions, size):
            rings = [
                sum(cost[a, b] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))
                for ring in itertools.permutations(some)
            ]
            found.append((tuple(int(r) for r in some), float(min(rings))))
    return found
