"""Nodes for patterns, and each chain's order and split with its nodes' own figures."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.planning.ground import Ground, Machine
from scheduler.planning.kinds import MachineClass, link_cost_s
from scheduler.planning.patterns import Pattern, pad
from scheduler.planning.price import FINE, Priced, polish, price, rates
from scheduler.planning.table import Table

ALL_ORDERS_STAGES_MAX: Final = 4
MANY_CHAINS: Final = 400


@dataclass(frozen=True, slots=True)
class Chain:
    """Machines in order, layers of each, tokens/s and seconds per token alone."""

    members: tuple[int, ...]
    counts: tuple[int, ...]
    rate: float
    tpot_s: float


def assign(
    ground: Ground, classes: Sequence[MachineClass], patterns: Sequence[Pattern]
) -> list[tuple[int, ...]]:
    """Members of each pattern's classes, every machine once.

    The best linked go together, into the chains that carry most: a chain's rate is convex in its
    trip, so equals beside equals carry more than mixtures. The last stage needs no uplink.

    Raises ValueError where a class is used more often than it has members: a solver that lies.
    """
    left = [list(c.members) for c in classes]
    ranked = sorted(range(len(patterns)), key=lambda i: (-patterns[i].rate, patterns[i].order, i))
    chosen: list[list[int]] = [[] for _ in patterns]
    for at in ranked:
        for index in patterns[at].order[:-1]:
            if not left[index]:
                raise ValueError("the solver used nodes that do not exist")
            chosen[at].append(left[index].pop(0))
    for at in ranked:
        index = patterns[at].order[-1]
        if not left[index]:
            raise ValueError("the solver used nodes that do not exist")
        nearest = min(left[index], key=lambda i: (ground.machines[i].last_mile_s, i))
        left[index].remove(nearest)
        chosen[at].append(nearest)
    return [tuple(members) for members in chosen]


def finish(
    ground: Ground,
    table: Table,
    groups: Sequence[Sequence[int]],
    *,
    tpot_s_max: float,
    is_quick: bool = False,
) -> list[Chain | None]:
    """The best order and split of each group of machines; None where it cannot carry anything."""
    if not groups:
        return []
    is_quick = is_quick or len(groups) > MANY_CHAINS
    orders: list[tuple[int, ...]] = []
    owner: list[int] = []
    for at, group in enumerate(groups):
        for order in _orders(ground, group, is_quick=is_quick):
            orders.append(order)
            owner.append(at)
    width = max(len(order) for order in orders)
    array = pad(table, orders, width)
    rough = price(table, array, tpot_s_max=tpot_s_max, grid=5 if is_quick else 8)
    best: dict[int, int] = {}
    for row, at in enumerate(owner):
        if at not in best or rough.rate[row] > rough.rate[best[at]]:
            best[at] = row
    rows = np.array([best[at] for at in range(len(groups))], dtype=np.int64)
    array = array[rows]
    priced = rough if is_quick else price(table, array, tpot_s_max=tpot_s_max, grid=24)
    if is_quick:
        priced = Priced(rough.rate[rows], rough.tpot[rows], rough.counts[rows])
    exact, alone = rates(table, array, priced.counts, tpot_s_max=tpot_s_max, halvings=FINE)
    priced = polish(
        table,
        array,
        Priced(exact, alone, priced.counts),
        tpot_s_max=tpot_s_max,
        rounds=2 if is_quick else 12,
    )
    chains: list[Chain | None] = []
    for row in range(len(groups)):
        size = len(groups[row])
        if priced.rate[row] <= 0.0:
            chains.append(None)
            continue
        chains.append(
            Chain(
                tuple(int(i) for i in array[row][:size]),
                tuple(int(k) for k in priced.counts[row][:size]),
                float(priced.rate[row]),
                float(priced.tpot[row]),
            )
        )
    return chains


def _orders(ground: Ground, group: Sequence[int], *, is_quick: bool) -> Iterator[tuple[int, ...]]:
    """All orders of a short chain; else regions in blocks, every first and last, and uplinks
    falling in between."""
    if len(group) <= (2 if is_quick else ALL_ORDERS_STAGES_MAX):
        yield from itertools.permutations(group)
        return
    machines = ground.machines

    def cost(index: int) -> tuple[float, int]:
        return link_cost_s(ground, machines[index]), index

    blocks: dict[int, list[int]] = {}
    for index in sorted(group, key=cost):
        blocks.setdefault(machines[index].region, []).append(index)
    ends = 2 if is_quick else len(group)
    for ring in itertools.permutations(blocks) if len(blocks) <= 3 else [tuple(blocks)]:
        head, tail = blocks[ring[0]], blocks[ring[-1]]
        firsts = _ends(machines, head, ends)
        lasts = _ends(machines, tail, ends)
        for first in firsts:
            for last in lasts:
                if first == last:
                    continue
                inner = [i for region in ring for i in blocks[region] if i not in (first, last)]
                yield (first, *inner, last)


def _ends(machines: Sequence[Machine], block: Sequence[int], count: int) -> list[int]:
    """Candidates for an end: the worst uplinks and the fastest."""
    if count >= len(block):
        return list(block)
    fastest = sorted(block, key=lambda i: (machines[i].curve.read_s, i))
    narrow = sorted(block, key=lambda i: (machines[i].up_bytes_per_s, machines[i].curve.read_s, i))
    return list(dict.fromkeys([*narrow[:count], *fastest[:1]]))
