"""Pools of a few machines, exactly: every set of them, every order, every split.

Sets grow from small to large. The best partition of a set into smaller ones is a rate that the set
as one chain must exceed to be of use, and few do: most are ruled out by their (first, last) pairs
at the shortest way round and the widest links.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scheduler.planning.assign import Chain
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.splits import Rows, Split, Splitter
from scheduler.planning.table import Floats, Ints, make_table

GAIN: Final = 1e-6
"""Share by which one chain must carry more than the same machines in several."""


def plan_exactly(ground: Ground, wish: Wish) -> list[Chain]:
    """The chains that carry most together. Time doubles with every machine: for a few."""
    count = len(ground.machines)
    search = BestChains(ground, wish)
    everything = (1 << count) - 1
    rate = [0.0] * (everything + 1)
    chains: dict[int, Split] = {}
    picked = [0] * (everything + 1)
    for mask in range(1, everything + 1):
        rate[mask], picked[mask] = _best_parts(mask, rate, chains)
        found = search.best([i for i in range(count) if mask >> i & 1], rate[mask] * (1.0 + GAIN))
        if found is not None:
            chains[mask] = found
            rate[mask], picked[mask] = found.rate, mask
    plan: list[Chain] = []
    left = everything
    while left:
        part = picked[left]
        if part in chains:
            own = chains[part]
            plan.append(Chain(own.order, own.counts, own.rate, own.tpot_s))
        left ^= part
    return plan


def _best_parts(mask: int, rate: Sequence[float], chains: dict[int, Split]) -> tuple[float, int]:
    """The best of `mask` without a chain over all of it, and the part with its first machine: a
    chain, or the machine alone where it stands by."""
    first = mask & -mask
    others = mask ^ first
    best, pick = rate[others], first
    part = others
    while part:
        part = (part - 1) & others
        own = chains.get(part | first)
        if own is not None and own.rate + rate[others ^ part] > best:
            best, pick = own.rate + rate[others ^ part], part | first
    return best, pick


class BestChains:
    """The best chain over all of some machines."""

    def __init__(self, ground: Ground, wish: Wish) -> None:
        machines = ground.machines
        limit = np.inf if wish.tpot_s_max is None else wish.tpot_s_max
        self._stages_max = min(wish.stages_max or len(machines), ground.num_layers)
        table = make_table(ground)
        self._splitter = Splitter(table, tpot_s_max=limit)
        loose = replace(table, first=0.0 * table.first, both=table.last)
        self._loose_splitter = Splitter(loose, tpot_s_max=limit)
        self._half_s: Floats = np.array(
            [[ground.rtt_s(a, b) / 2 for b in machines] for a in machines]
        )
        self._link_s: Floats = np.array(
            [
                [
                    ground.activation_bytes / min(a.up_bytes_per_s, b.down_bytes_per_s)
                    for b in machines
                ]
                for a in machines
            ]
        )
        np.fill_diagonal(self._link_s, np.inf)
        self._ways = _shortest_ways(self._half_s)

    def best(self, members: Sequence[int], carried: float) -> Split | None:
        """The best order and split of `members`, if it carries more than `carried`."""
        if len(members) > self._stages_max:
            return None
        least = carried * (1.0 + GAIN) + GAIN
        loose = self._by_last(members)
        lasts = loose.order[self._loose_splitter.able(loose, least)[0], -1]
        if not len(lasts):
            return None
        rows = self._bounds(members)
        rows = rows.at(np.flatnonzero(np.isin(rows.order[:, -1], lasts)))
        best: Split | None = None
        while len(rows.order):
            keep, row = self._splitter.able(rows, carried * (1.0 + GAIN) + GAIN)
            if row is None:
                break
            found = self._splitter.best(self._orders(rows.order[row]), carried)
            if found is not None:
                best, carried = found, found.rate
            rows = rows.at(keep[keep != row])
        return best

    def _by_last(self, members: Sequence[int]) -> Rows:
        """Every last machine, whichever is the first: an embedding weighs nothing here."""
        if len(members) == 1:
            return self._bounds(members)
        order = np.array(
            [(*(i for i in members if i != last), last) for last in members], dtype=np.int64
        )
        mask = sum(1 << i for i in members)
        rings = self._ways[mask] + self._half_s.T  # (first, last)
        link_s = self._link_s[order[:, :, None], order[:, None, :]].min(axis=2)
        link_s[:, -1] = 0.0
        return Rows(order, rings[:, order[:, -1]].min(axis=0), link_s)

    def _bounds(self, members: Sequence[int]) -> Rows:
        """Every first and last machine, at the shortest way round and the widest links."""
        if len(members) == 1:
            return Rows(np.array([members], dtype=np.int64), np.zeros(1), np.zeros((1, 1)))
        orders = [
            (first, *(i for i in members if i not in (first, last)), last)
            for first, last in itertools.permutations(members, 2)
        ]
        order = np.array(orders, dtype=np.int64)
        mask = sum(1 << i for i in members)
        first, last = order[:, 0], order[:, -1]
        hops_s = self._ways[mask][first, last] + self._half_s[last, first]
        between = self._link_s[order[:, :, None], order[:, None, 1:]]  # (rows, from, to)
        link_s = between.min(axis=2)
        link_s[:, -1] = 0.0
        return Rows(order, hops_s, link_s)

    def _orders(self, ends: Ints) -> Rows:
        """Every order between a first and a last machine; of those with the same links the
        shortest."""
        if len(ends) == 1:
            return self._bounds([int(ends[0])])
        ways = list(itertools.permutations(ends[1:-1]))
        count = len(ways)
        inner = np.array(ways, dtype=np.int64).reshape(count, len(ends) - 2)
        order = np.hstack(
            [np.full((count, 1), ends[0]), inner, np.full((count, 1), ends[-1])]
        ).astype(np.int64)
        behind = np.roll(order, -1, axis=1)
        hops_s = self._half_s[order, behind].sum(axis=1)
        link_s = self._link_s[order, behind]
        link_s[:, -1] = 0.0
        by_machine = np.take_along_axis(link_s, np.argsort(order, axis=1), axis=1)
        ranked = np.argsort(hops_s, kind="stable")
        _, kept = np.unique(by_machine[ranked], axis=0, return_index=True)
        index = ranked[np.sort(kept)]
        return Rows(order[index], hops_s[index], link_s[index])


def _shortest_ways(half_s: Floats) -> list[Floats]:
    """By set of machines the shortest way over all of them from i to j (Held and Karp, 1962)."""
    count = len(half_s)
    ways = [np.full((count, count), np.inf) for _ in range(1 << count)]
    for i in range(count):
        ways[1 << i][i, i] = 0.0
    for mask in range(1, 1 << count):
        for j in range(count):
            if not mask >> j & 1:
                own = ways[mask | 1 << j]
                own[:, j] = np.minimum(own[:, j], (ways[mask] + half_s[:, j]).min(axis=1))
    return ways
