"""Column generation: replicas that tell machines of one kind apart by their links.

The LP over kinds hides that a narrow uplink hurts everywhere but in a last stage, and that near
machines belong together. Its patterns are instantiated with fine classes (single machines in a
small pool): given the LP's price of each, a replica's best instance takes the members that are
cheapest in price plus what their links cost the replica. Instances that gain join the LP
(Gilmore and Gomory, 1961), until none does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.planning.ground import Ground, Machine
from scheduler.planning.kinds import MachineClass
from scheduler.planning.master import Master
from scheduler.planning.patterns import Pattern, orders_of, pad
from scheduler.planning.price import price, rates
from scheduler.planning.table import Table, make_table

WEIGHTS: Final = (0.8, 1.4)
"""How much a second on the way counts against the tangent: rates are convex in it."""
PROMISING: Final = 0.12
"""Share of its rate by which a pattern over kinds may miss its price and still be instantiated."""
NEAR: Final = 0.06
NEARLY: Final = 1e-3
"""The LP is solved when what is missing is at most this share of it."""


@dataclass(frozen=True, slots=True)
class _Sketch:
    """A pattern over kinds: tokens/s lost per second of its trip, and each stage's batch."""

    order: tuple[int, ...]
    counts: tuple[int, ...]
    lost_per_second: float
    batches: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Generated:
    """Patterns over fine classes; the LP's bound over them, and its prices."""

    patterns: list[Pattern]
    lp_bound: float
    prices: tuple[float, ...]


def generate(
    ground: Ground,
    coarse: Sequence[MachineClass],
    patterns: Sequence[Pattern],
    coarse_prices: Sequence[float],
    fine: Sequence[MachineClass],
    parts: Sequence[Sequence[int]],
    seeds: Sequence[Pattern],
    *,
    rounds: int,
    tpot_s_max: float,
    time_limit_s: float,
) -> Generated:
    """Patterns over `fine`, where `parts[c]` are the fine classes of coarse class c. `seeds` are
    patterns over `fine` to begin with."""
    sketches = _sketches(ground, coarse, patterns, coarse_prices, tpot_s_max)
    table = make_table(ground, tuple(c.average for c in fine))
    machines = [c.average for c in fine]
    sizes = [len(c.members) for c in fine]
    prices = [0.0] * len(fine)
    for index, own in enumerate(parts):
        for f in own:
            prices[f] = coarse_prices[index]
    known = {p.order: p for p in seeds}
    master = Master(sizes, time_limit_s=time_limit_s)
    master.join(seeds)
    bound, stages_min = 0.0, min((len(s.order) for s in sketches), default=1)
    for at in range(rounds):
        found: dict[tuple[int, ...], _Sketch] = {}
        for sketch in sketches:
            for weight in WEIGHTS:
                order = _instance(ground, sketch, weight, machines, sizes, parts, prices)
                if order is not None and order not in known:
                    found.setdefault(order, sketch)
        priced = _priced(table, found, tpot_s_max)
        gains = [p.rate - sum(prices[f] for f in p.order) for p in priced]
        fresh = [p for p, gain in zip(priced, gains, strict=True) if at == 0 or gain > 0.0]
        # So many replicas at most may each gain so much: the LP is that close to its end.
        is_near = at > 0 and max(gains, default=0.0) * sum(sizes) / stages_min < NEARLY * bound
        if is_near:
            break
        known.update((p.order, p) for p in fresh)
        master.join(fresh)
        bound, prices = master.solve()
    return Generated(list(known.values()), bound, tuple(prices))


def _sketches(
    ground: Ground,
    coarse: Sequence[MachineClass],
    patterns: Sequence[Pattern],
    prices: Sequence[float],
    tpot_s_max: float,
) -> list[_Sketch]:
    """Orders of those patterns that are nearly worth their price."""
    orders: list[tuple[int, ...]] = []
    for pattern in patterns:
        price_of = sum(prices[c] for c in pattern.order)
        if pattern.rate < price_of - PROMISING * pattern.rate:
            continue
        orders += orders_of(coarse, sorted(pattern.order))
    if not orders:
        return []
    table = make_table(ground, tuple(c.average for c in coarse))
    array = pad(table, orders, max(len(o) for o in orders))
    priced = price(table, array, tpot_s_max=tpot_s_max, grid=8)
    best: dict[tuple[int, ...], float] = {}
    for row, order in enumerate(orders):
        key = tuple(sorted(order))
        best[key] = max(best.get(key, 0.0), float(priced.rate[row]))
    sketches: list[_Sketch] = []
    for row, order in enumerate(orders):
        rate = float(priced.rate[row])
        if rate <= 0.0 or rate < (1.0 - NEAR) * best[tuple(sorted(order))]:
            continue
        counts = tuple(int(k) for k in priced.counts[row][: len(order)])
        sketches.append(_sketch(coarse, order, counts, rate))
    return sketches


def _sketch(
    coarse: Sequence[MachineClass], order: tuple[int, ...], counts: tuple[int, ...], rate: float
) -> _Sketch:
    last = len(order) - 1
    batches: list[float] = []
    slots = float("inf")
    for at, (index, count) in enumerate(zip(order, counts, strict=True)):
        machine = coarse[index].average
        is_first, is_last = at == 0, at == last
        step_s = machine.curve.step_s(count, 1.0, is_last=is_last)
        batches.append(max(1.0, rate * step_s))
        slots = min(slots, machine.sequences_max(count, is_first=is_first, is_last=is_last))
    # X = C / T, so dX / dT = -X * X / C.
    return _Sketch(order, counts, rate * rate / max(1.0, slots), tuple(batches))


def _instance(
    ground: Ground,
    sketch: _Sketch,
    weight: float,
    machines: Sequence[Machine],
    sizes: Sequence[int],
    parts: Sequence[Sequence[int]],
    prices: Sequence[float],
) -> tuple[int, ...] | None:
    """The members that are cheapest in price and in what their links cost this replica. The last
    stage is chosen first: it alone needs no uplink."""
    per_second = weight * sketch.lost_per_second
    left: dict[int, int] = {}
    chosen = [-1] * len(sketch.order)
    last = len(chosen) - 1
    for at in (last, *range(last)):
        best, least = -1, float("inf")
        for f in parts[sketch.order[at]]:
            if left.get(f, sizes[f]) < 1:
                continue
            link_s = machines[f].last_mile_s if last else 0.0
            if at < last:
                bytes_ = sketch.batches[at] * ground.activation_bytes
                link_s += bytes_ / machines[f].up_bytes_per_s
            cost = prices[f] + per_second * link_s
            if cost < least:
                best, least = f, cost
        if best < 0:
            return None
        left[best] = left.get(best, sizes[best]) - 1
        chosen[at] = best
    return tuple(chosen)


def _priced(
    table: Table, found: dict[tuple[int, ...], _Sketch], tpot_s_max: float
) -> list[Pattern]:
    """Instances with their own rates, at their sketch's split."""
    if not found:
        return []
    orders = list(found)
    width = max(len(order) for order in orders)
    array = pad(table, orders, width)
    counts = np.zeros_like(array)
    for row, order in enumerate(orders):
        counts[row, : len(order)] = found[order].counts
    rate, tpot = rates(table, array, counts, tpot_s_max=tpot_s_max, halvings=20)
    return [
        Pattern(order, found[order].counts, float(rate[row]), float(tpot[row]))
        for row, order in enumerate(orders)
        if rate[row] > 0.0
    ]
