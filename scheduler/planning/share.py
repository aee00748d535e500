"""Several models side by side on one pool of machines, by max-min fairness.

Every model that fits gets a chain first. The other machines go, one by one, to the model that has
least of what it is asked for, each to the model to which it is worth most beside the others (the
comparative advantage; the worths are the prices of each model's own plan). Each model is then
planned on its machines, and the shares are corrected by what came of it.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from plait.errors import UnavailableError
from scheduler.planning.assign import Chain
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.pool import PoolPlan

PlanPool = Callable[[Ground, Wish], PoolPlan]
ROUNDS: Final = 4
CLOSE: Final = 0.05
"""Shares that are no further apart than this are not corrected."""
STEP: Final = 0.7
SMALL: Final = 12
CLIMBS: Final = 80
"""Pools up to this size are climbed, by so many divisions at most."""
KNOWN_MAX: Final = 1_024
FLOOR: Final = 0.01
"""What a machine is worth to a model that has no price for it, against an even part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """`plans[m]` over the machines of the whole pool, without chains where the model fits nowhere;
    `alone_per_s[m]` is what it would carry with all of them."""

    plans: tuple[PoolPlan, ...]
    alone_per_s: tuple[float, ...]

    def rates_per_s(self) -> tuple[float, ...]:
        """Of each model."""
        return tuple(plan.rate_per_s for plan in self.plans)


def share_pool(
    grounds: Sequence[Ground], parts: Sequence[float], wish: Wish, plan: PlanPool
) -> SharedPlan:
    """One plan for each model. `grounds` are the same machines as each model sees them, `parts`
    what it is asked for, `plan` plans one. Raises UnavailableError where no model fits."""
    alone = [_planned(ground, range(len(ground.machines)), wish, plan) for ground in grounds]
    fits = [m for m, own in enumerate(alone) if own.chains]
    if not fits:
        plan(grounds[0], wish)  # raises, with what is missing
    sharing = _Sharing(grounds, parts, wish, plan, alone)
    best = sharing.best(fits)
    return SharedPlan(plans=tuple(best), alone_per_s=tuple(own.rate_per_s for own in alone))


class _Sharing:
    def __init__(
        self,
        grounds: Sequence[Ground],
        parts: Sequence[float],
        wish: Wish,
        plan: PlanPool,
        alone: Sequence[PoolPlan],
    ) -> None:
        self._grounds, self._parts = grounds, parts
        self._wish, self._plan, self._alone = wish, plan, alone
        self._known: dict[tuple[int, tuple[int, ...]], PoolPlan] = {}
        self._worth = [_worths(g, own) for g, own in zip(grounds, alone, strict=True)]

    def best(self, fits: Sequence[int]) -> list[PoolPlan]:
        """Of a few rounds, the one in which most is served at the shares asked."""
        pinned = self._pinned(fits)
        served = [m for m in fits if pinned[m]]
        targets = {m: self._parts[m] for m in served}
        best: list[PoolPlan] = []
        division: list[list[int]] = []
        for _ in range(ROUNDS):
            members = self._dealt(pinned, targets)
            plans = self._filled(self._plans(members), served)
            if not best or self._value(plans) > self._value(best):
                best, division = plans, members
            met = {m: plans[m].rate_per_s / self._parts[m] for m in served}
            if len(served) < 2 or max(met.values()) <= (1.0 + CLOSE) * min(met.values()):
                break
            middle = math.prod(max(v, 1e-9) for v in met.values()) ** (1 / len(met))
            for m in served:
                targets[m] *= (middle / max(met[m], 1e-9)) ** STEP
        is_small = len(self._grounds[0].machines) <= SMALL and len(served) > 1
        return self._climbed(best, division, served) if is_small else best

    def _climbed(
        self, best: list[PoolPlan], division: list[list[int]], served: Sequence[int]
    ) -> list[PoolPlan]:
        """Of a small pool, in which every machine is a large part: single machines given over, or
        exchanged, as long as that is better."""
        left = CLIMBS
        is_better = True
        while is_better:
            is_better = False
            for other in _neighbours(division, served):
                if left == 0:
                    return best
                left -= 1
                plans = self._plans(other)
                if self._value(plans) > self._value(best):
                    best, division, is_better = plans, other, True
                    break
        return best

    def _plans(self, members: Sequence[Sequence[int]]) -> list[PoolPlan]:
        """Each model's plan on its machines; small ones are remembered."""
        plans: list[PoolPlan] = []
        for m, ground in enumerate(self._grounds):
            key = m, tuple(sorted(members[m]))
            if key not in self._known:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[key] = _planned(ground, key[1], self._wish, self._plan)
            plans.append(self._known[key])
        return plans

    def _value(self, plans: Sequence[PoolPlan]) -> tuple[int, float, float]:
        """Models served, the least of what any has of its part, then all together."""
        rates = [plan.rate_per_s for plan in plans]
        met = [r / part for r, part in zip(rates, self._parts, strict=True) if r > 0.0]
        return len(met), round(min(met, default=0.0), 6), sum(rates)

    def _pinned(self, fits: Sequence[int]) -> list[tuple[int, ...]]:
        """Machines of one chain for each model, the hardest to place first: the chain that takes
        least from the others."""
        pinned: list[tuple[int, ...]] = [() for _ in self._grounds]
        left = list(range(len(self._grounds[0].machines)))
        hardest = sorted(
            fits, key=lambda m: (min(len(c.members) for c in self._alone[m].chains), m)
        )
        for m in reversed(hardest):
            found = _planned(self._grounds[m], left, self._wish, self._plan)
            if not found.chains:
                continue
            chain = min(found.chains, key=lambda c: (len(c.members), c.rate, c.members))
            pinned[m] = chain.members
            left = [i for i in left if i not in chain.members]
        return pinned

    def _dealt(self, pinned: Sequence[Sequence[int]], targets: dict[int, float]) -> list[list[int]]:
        """Machines of each model: always to the one that has least of its target, the machine that
        is worth most to it beside the others."""
        members = [list(own) for own in pinned]
        taken = {i for own in pinned for i in own}
        has = {m: sum(self._worth[m][i] for i in pinned[m]) for m in targets}
        queues = {m: self._by_advantage(m, targets) for m in targets}
        for _ in range(len(self._grounds[0].machines) - len(taken)):
            m = min(targets, key=lambda m: (has[m] / targets[m], m))
            while queues[m][-1] in taken:
                queues[m].pop()
            index = queues[m].pop()
            taken.add(index)
            members[m].append(index)
            has[m] += self._worth[m][index]
        return members

    def _by_advantage(self, m: int, targets: dict[int, float]) -> list[int]:
        """Machines, the one with most advantage last."""
        worth = self._worth

        def advantage(index: int) -> tuple[float, float, int]:
            others = max((worth[k][index] for k in targets if k != m), default=1.0)
            return round(worth[m][index] / others, 9), worth[m][index], -index

        return sorted(range(len(worth[m])), key=advantage)

    def _filled(self, plans: Sequence[PoolPlan], served: Sequence[int]) -> list[PoolPlan]:
        """What all leave idle, offered to whoever has least of its part."""
        filled = list(plans)
        count = len(self._grounds[0].machines)
        for m in sorted(served, key=lambda m: (filled[m].rate_per_s / self._parts[m], m)):
            used = {i for plan in filled for chain in plan.chains for i in chain.members}
            idle = [i for i in range(count) if i not in used]
            more = _planned(self._grounds[m], idle, self._wish, self._plan)
            if more.chains:
                filled[m] = _merged(filled[m], more.chains)
        return [replace(plan, idle=()) for plan in filled]


def _neighbours(
    division: Sequence[Sequence[int]], served: Sequence[int]
) -> Iterator[list[list[int]]]:
    """Divisions in which one machine is given over, then those in which two are exchanged."""
    pairs = list(itertools.permutations(served, 2))
    for a, b in pairs:
        for i in division[a]:
            yield _with(division, {a: (i, None), b: (None, i)})
    for a, b in itertools.combinations(served, 2):
        for i, j in itertools.product(division[a], division[b]):
            yield _with(division, {a: (i, j), b: (j, i)})


def _with(
    division: Sequence[Sequence[int]], changes: dict[int, tuple[int | None, int | None]]
) -> list[list[int]]:
    """The division with, by model, one machine out and another in."""
    changed = [list(own) for own in division]
    for m, (out, come) in changes.items():
        changed[m] = [i for i in changed[m] if i != out] + ([] if come is None else [come])
    return changed


def _worths(ground: Ground, alone: PoolPlan) -> list[float]:
    """Tokens/s that each machine adds, by its kind and region's price; a little of an even part
    where it has none."""
    prices = {(kind, region): price for kind, region, price in alone.worth}
    even = max(alone.rate_per_s, 1e-6) / len(ground.machines)
    return [
        max(
            prices.get((m.kind, ground.regions[m.region]), even if not prices else 0.0),
            FLOOR * even,
        )
        for m in ground.machines
    ]


def _planned(ground: Ground, members: Sequence[int], wish: Wish, plan: PlanPool) -> PoolPlan:
    """A plan over some machines, by their places in the whole pool; without chains where nothing
    fits."""
    if members:
        try:
            found = plan(replace(ground, machines=tuple(ground.machines[i] for i in members)), wish)
        except UnavailableError:
            pass
        else:
            chains = tuple(
                replace(c, members=tuple(members[i] for i in c.members)) for c in found.chains
            )
            return replace(found, chains=chains, idle=tuple(members[i] for i in found.idle))
    return PoolPlan(
        chains=(),
        idle=tuple(members),
        rate_per_s=0.0,
        bound_per_s=0.0,
        worth=(),
        front=(),
        solver="greedy",
        status="feasible",
    )


def _merged(plan: PoolPlan, more: Sequence[Chain]) -> PoolPlan:
    chains = tuple(sorted((*plan.chains, *more), key=lambda c: (-c.rate, c.members)))
    rate = sum(chain.rate for chain in chains)
    return replace(plan, chains=chains, rate_per_s=rate, bound_per_s=max(rate, plan.bound_per_s))
