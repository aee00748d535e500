"""The best chains over a few machines: every subset priced, then packed exactly.

With w(A) the best value of one chain inside the set A (a maximum over subsets, worked out bit by
bit), two chains carry at most max_A w(A) + w(S \\ A); applied twice, four chains.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import link_cost_s
from scheduler.planning.patterns import STAGES_MAX, pad
from scheduler.planning.price import price
from scheduler.planning.repair.standing import Costs
from scheduler.planning.table import Floats, Table

GROUP_MAX: Final = 12
"""Machines that are regrouped together at most."""
FOUR_CHAINS_MAX: Final = 8
"""Up to this many machines, packings of up to four chains are searched; above, of two."""
SPARE_STAGES: Final = 2
SPARE_STAGES_FEW: Final = 4
FEW: Final = 7
"""Stages that a chain may have beyond what holds the layers, and beyond it in a set of few."""
REGIONS_MAX: Final = 2
"""Regions that a chain of a larger set may join."""
GRID: Final = 3
HALVINGS: Final = 10

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """Disjoint groups inside a set of machines, and their value: tokens/s less the moves' price."""

    groups: tuple[Group, ...]
    value: float


class Regroup:
    """Values of groups, priced once each."""

    def __init__(
        self, ground: Ground, table: Table, costs: Costs, *, total_per_s: float, wish: Wish
    ) -> None:
        self._ground = ground
        self._table = table
        self._costs = costs
        self._total_per_s = total_per_s
        self._slo = math.inf if wish.tpot_s_max is None else wish.tpot_s_max
        self._stages_max = min(STAGES_MAX, wish.stages_max or STAGES_MAX)
        self._room = [m.layers_max(is_first=False, is_last=False) for m in ground.machines]
        by_link = sorted((link_cost_s(ground, m), i) for i, m in enumerate(ground.machines))
        self._link_rank = {i: rank for rank, (_, i) in enumerate(by_link)}.__getitem__
        self._values: dict[Group, float] = {}
        self._known: dict[Group, float] = {}
        self._leans: dict[Group, list[Group]] = {}

    def know(self, group: Group, value: float) -> None:
        """A group's value that is known better than it would be priced: a chain as it stands."""
        self._known[tuple(sorted(group))] = value

    def learn(self, sets: Iterable[Group]) -> None:
        """Price every lean subset of every set; all at once, as arrays are quicker the longer."""
        fresh: dict[Group, None] = {}
        few: dict[Group, None] = {}
        for members in sets:
            if members not in self._leans:
                self._leans[members] = self._lean(members)
            fresh.update(
                (group, None) for group in self._leans[members] if group not in self._values
            )
            if len(members) <= FEW:
                few.update((group, None) for group in self._leans[members])
        self._values.update(dict.fromkeys(fresh, -math.inf))
        self._price([(order, group) for group in fresh for order in self._orders(group)])
        # What fits nowhere may fit with other ends; few machines are worth a second look.
        closed = [g for g in few if g in fresh and self._values[g] == -math.inf]
        self._price([(order, group) for group in closed for order in _all_ends(group)])

    def _price(self, rows: Sequence[tuple[Group, Group]]) -> None:
        """Take in (order, group) where it is worth more than what is known."""
        if not rows:
            return
        array = pad(self._table, [order for order, _ in rows], max(len(o) for o, _ in rows))
        priced = price(self._table, array, tpot_s_max=self._slo, grid=GRID, halvings=HALVINGS)
        value = priced.rate - self._costs.price(array, priced.counts, self._total_per_s)
        for (_, group), worth, rate in zip(rows, value, priced.rate, strict=True):
            if rate > 0.0 and worth > self._values[group]:
                self._values[group] = float(worth)

    def best(self, members: Group, *, count: int = 1, bonus: float = 0.0) -> list[Packed]:
        """The `count` best packings of the set, or nearly; what is in no group stands by. `bonus`
        counts for each chain beside its value."""
        size = len(members)
        own = np.zeros(1 << size)
        bits = {index: 1 << bit for bit, index in enumerate(members)}
        for group in self._leans[members]:
            value = self._values[group]
            if value + bonus > 0.0:
                own[sum([bits[i] for i in group])] = value + bonus
        for group, value in self._known.items():
            if bits.keys() >= set(group):
                own[sum([bits[i] for i in group])] = value + bonus
        single = _inside(own, size)
        full = (1 << size) - 1
        halves = np.arange(1 << max(0, size - 1))  # the last machine is in the other half
        is_deep = size <= FOUR_CHAINS_MAX
        inside, split = _pairs(single, size) if is_deep else (single, None)
        values = inside[halves] + inside[full - halves]
        packings: dict[tuple[Group, ...], Packed] = {}
        for half in np.argsort(-values, kind="stable")[: 4 * count]:
            parts = [int(half), full - int(half)]
            if split is not None:
                parts = [part for mask in parts for part in (split[mask], mask - split[mask])]
            chosen = sorted({_find(own, single, part) for part in parts} - {0})
            groups = tuple(_members(members, mask) for mask in chosen)
            value = float(sum(own[mask] - bonus for mask in chosen))
            packings.setdefault(groups, Packed(groups, value))
            if len(packings) == count:
                break
        return list(packings.values())

    def alone(self, members: Group) -> list[Packed]:
        """Every group inside the set that makes one chain; the set was learned."""
        groups = (g for g in self._leans[members] if self._values[g] > -math.inf)
        return [Packed((group,), self._values[group]) for group in groups]

    def _lean(self, members: Group) -> list[Group]:
        """Subsets with room for all layers, and at most `SPARE_STAGES` members more than that."""
        need = self._ground.num_layers
        ranked = sorted(
            (i for i in members if self._room[i] > 0), key=lambda i: (-self._room[i], i)
        )
        rooms = [self._room[i] for i in ranked]
        suffix = [0, *itertools.accumulate(reversed(rooms))][::-1]
        found: list[Group] = []
        chosen: list[int] = []

        regions = [1 << self._ground.machines[i].region for i in ranked]
        regions_max = len(members) if len(members) <= FEW else REGIONS_MAX

        def walk(at: int, total: int, spare: int, where: int) -> None:
            if total >= need:
                found.append(tuple(sorted(chosen)))
                spare -= 1
            if spare < 0 or len(chosen) == self._stages_max or total + suffix[at] < need:
                return
            for next_at in range(at, len(ranked)):
                there = where | regions[next_at]
                if there.bit_count() > regions_max:
                    continue
                chosen.append(ranked[next_at])
                walk(next_at + 1, total + rooms[next_at], spare, there)
                chosen.pop()

        walk(0, 0, SPARE_STAGES_FEW if len(members) <= FEW else SPARE_STAGES, 0)
        return found

    def _orders(self, group: Group) -> list[Group]:
        """Regions in blocks, the best linked first: the last stage needs no uplink."""
        machines = self._ground.machines
        if len({machines[i].region for i in group}) == 1:
            return [tuple(sorted(group, key=self._link_rank))]
        blocks: dict[int, list[int]] = {}
        for index in sorted(group, key=self._link_rank):
            blocks.setdefault(machines[index].region, []).append(index)
        rings: list[Sequence[int]] = [sorted(blocks)]
        if len(blocks) == 2:
            rings.append(rings[0][::-1])
        return [tuple(i for region in ring for i in blocks[region]) for ring in rings]


def _all_ends(group: Group) -> Iterator[Group]:
    for first, last in itertools.permutations(group, 2):
        yield (first, *(i for i in group if i not in (first, last)), last)


def _inside(own: Floats, size: int) -> Floats:
    """The best value of a subset of every set, (sets,)."""
    best = own.copy()
    for bit in range(size):
        shaped = best.reshape(-1, 2, 1 << bit)
        np.maximum(shaped[:, 1, :], shaped[:, 0, :], out=shaped[:, 1, :])
    return best


def _pairs(single: Floats, size: int) -> tuple[Floats, list[int]]:
    """The best two groups inside every set, and the first of the two parts they lie in."""
    pair = np.zeros(1 << size)
    split = [0] * (1 << size)
    for mask in range(1 << size):
        subs = _subsets(mask)
        values = single[subs] + single[mask - subs]
        at = int(np.argmax(values))
        pair[mask] = values[at]
        split[mask] = int(subs[at])
    return pair, split


@functools.cache
def _subsets(mask: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    subs = np.zeros(1, dtype=np.int64)
    bit = 1
    while bit <= mask:
        if mask & bit:
            subs = np.concatenate([subs, subs + bit])
        bit <<= 1
    return subs


def _find(own: Floats, single: Floats, mask: int) -> int:
    """The subset of `mask` that has its best value; 0 where none is worth anything."""
    if single[mask] <= 0.0:
        return 0
    for bit in range(mask.bit_length()):
        less = mask & ~(1 << bit)
        if less != mask and single[less] >= single[mask]:
            mask = less
    return mask


def _members(members: Group, mask: int) -> Group:
    return tuple(i for bit, i in enumerate(members) if mask >> bit & 1)
