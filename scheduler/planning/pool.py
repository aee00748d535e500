"""Plans a pool: which machines form which replicas, how good that is, and what would help."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler.planning.assign import Chain
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import MachineClass, classify
from scheduler.planning.pack import NoSolverError, relax
from scheduler.planning.patterns import Pattern, make_patterns
from scheduler.planning.refusal import refusal
from scheduler.planning.search import Found, Pack, Search

PAIRED_MACHINES_MAX: Final = 48
"""Pools up to this size mix pairs of regions from the start; larger ones with what is left."""
MIXED_MACHINES_MAX: Final = 16
EXHAUSTIVE_MACHINES_MAX: Final = 8
"""Pools up to this size are planned by trying everything, in about a second."""
FRONT_POINTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """`bound_per_s` is the LP relaxation over the patterns; the rate itself where everything was
    tried. `worth` says per (kind, region) what one more machine would add at most, `front`
    (seconds per token alone, tokens/s at most)."""

    chains: tuple[Chain, ...]
    idle: tuple[int, ...]
    rate_per_s: float
    bound_per_s: float
    worth: tuple[tuple[str, str, float], ...]
    front: tuple[tuple[float, float], ...]
    solver: str
    status: str
    warnings: tuple[str, ...] = ()


def plan_pool(
    ground: Ground, wish: Wish, *, packer: Pack | None = None, trouble: str | None = None
) -> PoolPlan:
    """The best plan found. `packer` replaces the solver; where `trouble` says why there is none,
    nothing calls it.

    Raises UnavailableError where no replica fits: not enough memory (how much is missing), or an
    SLO that no chain meets (the nearest feasible one).
    """
    free = tuple(range(len(ground.machines)))
    classes = classify(ground, free)
    search = Search(ground, wish, packer, trouble)
    found: list[Found] = []
    patterns: list[Pattern] = []
    is_exhaustive = len(free) <= EXHAUSTIVE_MACHINES_MAX
    for own, scopes in _blocks(classes, _scopes(classes, len(free)), len(free)):
        made = make_patterns(ground, own, scopes, wish)
        if is_exhaustive:
            found.append(search.exhausted(own, made))
        elif made:
            found.append(search.best(own, made))
        patterns += _renumbered(made, own, classes)
    chains = [chain for block in found for chain in block.chains]
    left = _left(free, chains)
    while left and (more := _further(ground, wish, search, left)):
        chains += more
        left = _left(left, more)
    while wish.stages_max is None and left and (long := search.long(left)):
        chains += long
        left = _left(left, long)
    if not chains:
        raise refusal(ground, classes, wish)
    rate = sum(chain.rate for chain in chains)
    worth = [(*key, price) for block in found for key, price in block.worth.items()]
    statuses = [block.status for block in found]
    bound = max(rate, sum(block.bound for block in found))
    front = _front(classes, patterns, wish) if patterns and trouble is None else ()
    if is_exhaustive:
        # Whole replicas carry less than shares of them, and this is the most that whole ones do.
        front = tuple((limit, min(most, rate)) for limit, most in front)
    return PoolPlan(
        chains=tuple(sorted(chains, key=lambda c: (-c.rate, c.members))),
        idle=left,
        rate_per_s=rate,
        bound_per_s=bound,
        worth=tuple(sorted(worth, key=lambda item: (-item[2], item[0], item[1]))),
        front=front,
        solver=found[0].solver if found else "greedy",
        status="optimal" if statuses and set(statuses) == {"optimal"} else "feasible",
        warnings=tuple(dict.fromkeys(search.warnings)),
    )


def _further(ground: Ground, wish: Wish, search: Search, left: tuple[int, ...]) -> list[Chain]:
    """Replicas over any regions from machines that the regions leave over."""
    classes = classify(ground, left)
    patterns = make_patterns(ground, classes, [list(range(len(classes)))], wish)
    return search.plain(classes, patterns) if patterns else []


def _renumbered(
    patterns: Sequence[Pattern], own: Sequence[MachineClass], everything: Sequence[MachineClass]
) -> list[Pattern]:
    """A block's patterns over the classes of the whole pool."""
    at = {c.members: i for i, c in enumerate(everything)}
    places = [at[c.members] for c in own]
    return [replace(p, order=tuple(places[i] for i in p.order)) for p in patterns]


def _scopes(classes: Sequence[MachineClass], num_machines: int) -> list[list[int]]:
    """Sets of classes that a replica may mix: a region, a pair of them, all in a small pool."""
    everything = list(range(len(classes)))
    by_region: dict[int, list[int]] = {}
    for index in everything:
        by_region.setdefault(classes[index].average.region, []).append(index)
    if num_machines <= MIXED_MACHINES_MAX or len(by_region) == 1:
        return [everything]
    scopes = list(by_region.values())
    if num_machines <= PAIRED_MACHINES_MAX:
        scopes += [sorted(a + b) for a, b in itertools.combinations(scopes, 2)]
    return scopes


def _blocks(
    classes: Sequence[MachineClass], scopes: Sequence[Sequence[int]], num_machines: int
) -> list[tuple[list[MachineClass], list[list[int]]]]:
    """Classes that are planned together, with their scopes: regions of a large pool apart, as no
    pattern joins them."""
    if num_machines <= PAIRED_MACHINES_MAX:
        return [(list(classes), [list(scope) for scope in scopes])]
    return [([classes[i] for i in scope], [list(range(len(scope)))]) for scope in scopes]


def _front(
    classes: Sequence[MachineClass], patterns: Sequence[Pattern], wish: Wish
) -> tuple[tuple[float, float], ...]:
    """Tokens/s at most if no replica's token time alone exceeds a limit, for some limits."""
    times = sorted({round(p.tpot_s, 6) for p in patterns})
    steps = range(FRONT_POINTS + 1)
    points: list[tuple[float, float]] = []
    try:
        for limit in sorted({times[(len(times) - 1) * i // FRONT_POINTS] for i in steps}):
            kept = [p for p in patterns if p.tpot_s <= limit + 1e-6]
            bound, _ = relax(kept, classes, time_limit_s=wish.time_limit_s)
            if not points or bound > points[-1][1] * 1.001:
                points.append((limit, bound))
    except NoSolverError:
        return ()
    return tuple(points)


def _left(free: Sequence[int], chains: Sequence[Chain]) -> tuple[int, ...]:
    taken = {index for chain in chains for index in chain.members}
    return tuple(index for index in free if index not in taken)
