"""Columns: multisets of classes that make one replica, each with its best order, split and rate."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import EXACT_MACHINES_MAX, MachineClass
from scheduler.planning.price import price
from scheduler.planning.table import Ints, Table, make_table

STAGES_MAX: Final = 12
PATTERNS_MAX: Final = 1500
"""Patterns of one scope at most; the leanest are kept."""
PATTERNS_MAX_MANY: Final = 600
MANY_SCOPES: Final = 6
STEPS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class Pattern:
    """`order` lists classes, with repeats, as the stages stand; `rate` in tokens/s."""

    order: tuple[int, ...]
    counts: tuple[int, ...]
    rate: float
    tpot_s: float

    def uses(self) -> dict[int, int]:
        """Members of each class."""
        found: dict[int, int] = {}
        for index in self.order:
            found[index] = found.get(index, 0) + 1
        return found


def make_patterns(
    ground: Ground, classes: Sequence[MachineClass], scopes: Sequence[Sequence[int]], wish: Wish
) -> list[Pattern]:
    """Every pattern of every scope with a rate above 0, each once."""
    table = make_table(ground, tuple(c.average for c in classes))
    orders: dict[tuple[int, ...], None] = {}
    most_patterns = PATTERNS_MAX if len(scopes) < MANY_SCOPES else PATTERNS_MAX_MANY
    for scope in scopes:
        for members in _lean(ground, classes, scope, wish, most_patterns):
            for order in orders_of(classes, members):
                orders[order] = None
    listed = list(orders)
    if not listed:
        return []
    width = max(len(order) for order in listed)
    array = pad(table, listed, width)
    slo = np.inf if wish.tpot_s_max is None else wish.tpot_s_max
    priced = price(table, array, tpot_s_max=slo, grid=6)
    best: dict[tuple[int, ...], Pattern] = {}
    for at in np.flatnonzero(priced.rate > 0.0):
        order = listed[at]
        key = tuple(sorted(order))
        rate = float(priced.rate[at])
        if key not in best or rate > best[key].rate:
            counts = tuple(int(k) for k in priced.counts[at][: len(order)])
            best[key] = Pattern(order, counts, rate, float(priced.tpot[at]))
    return [best[key] for key in sorted(best)]


def pad(table: Table, orders: Sequence[Sequence[int]], width: int) -> Ints:
    """Orders as one array, "no stage" after the last."""
    array = np.full((len(orders), width), table.none, dtype=np.int64)
    for row, order in enumerate(orders):
        array[row, : len(order)] = order
    return array


def orders_of(classes: Sequence[MachineClass], members: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders worth a price: regions in blocks, every kind of first and last stage."""
    if len(members) == 1:
        yield tuple(members)
        return
    blocks: dict[int, list[int]] = {}
    for index in members:
        blocks.setdefault(classes[index].average.region, []).append(index)
    regions = sorted(blocks)
    rings = itertools.permutations(regions) if len(regions) <= 3 else iter([tuple(regions)])
    for ring in rings:
        if len(ring) == 1:
            own = blocks[ring[0]]
            for first, last in sorted(set(itertools.permutations(own, 2))):
                yield (first, *_without(own, (first, last)), last)
            continue
        head, tail = blocks[ring[0]], blocks[ring[-1]]
        middle = [i for region in ring[1:-1] for i in blocks[region]]
        for first in sorted(set(head)):
            for last in sorted(set(tail)):
                start = _without(head, (first,))
                end = _without(tail, (last,))
                yield (first, *start, *middle, *end, last)


def _without(members: Sequence[int], taken: Sequence[int]) -> list[int]:
    left = list(members)
    for index in taken:
        left.remove(index)
    return left


def _lean(
    ground: Ground,
    classes: Sequence[MachineClass],
    scope: Sequence[int],
    wish: Wish,
    most_patterns: int,
) -> list[tuple[int, ...]]:
    """Multisets with room for all layers, and little more than that: another stage costs a trip
    more than its KV brings. Small pools try them all."""
    room = {i: classes[i].average.layers_max(is_first=False, is_last=False) for i in scope}
    usable = sorted((i for i in scope if room[i] > 0), key=lambda i: (-room[i], i))
    is_small = sum(len(c.members) for c in classes) <= EXACT_MACHINES_MAX
    spare = STAGES_MAX if is_small else 2 if len(scope) <= 6 else 1
    most = min(STAGES_MAX, ground.num_layers, wish.stages_max or STAGES_MAX)
    need = ground.num_layers
    found: list[tuple[int, ...]] = []
    chosen: list[int] = []
    steps = 0

    def walk(at: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if steps > STEPS_MAX or len(chosen) > most:
            return
        if total >= need:
            found.append(tuple(chosen))
        if len(chosen) == most:
            return
        if total - sum(room[i] for i in chosen[len(chosen) - spare :]) >= need and (
            len(chosen) > spare
        ):
            return  # it would do without the last `spare`
        for next_at in range(at, len(usable)):
            own = usable[next_at]
            taken = sum(1 for i in chosen if i == own)
            if taken < len(classes[own].members):
                chosen.append(own)
                walk(next_at, total + room[own])
                chosen.pop()

    walk(0, 0)
    found.sort(key=lambda c: (len(c), c))
    return found[:most_patterns]
