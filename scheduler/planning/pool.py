"""Plans a pool: which machines form which replicas, how good that is, and what would help."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from plait.errors import UnavailableError
from scheduler.planning.assign import Chain, assign, finish
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import MachineClass, classify
from scheduler.planning.pack import NoSolverError, Packing, pack, relax
from scheduler.planning.patterns import Pattern, make_patterns
from scheduler.planning.table import Table, make_table

PAIRED_MACHINES_MAX: Final = 48
"""Pools up to this size mix pairs of regions from the start; larger ones with what is left."""
MIXED_MACHINES_MAX: Final = 16
FRONT_POINTS: Final = 5

Pack = Callable[[Sequence[Pattern], Sequence[MachineClass], float], Packing]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """`bound_per_s` is the LP relaxation over the patterns. `worth` says per (kind, region) what
    one more machine would add at most, `front` (seconds per token alone, tokens/s at most)."""

    chains: tuple[Chain, ...]
    idle: tuple[int, ...]
    rate_per_s: float
    bound_per_s: float
    worth: tuple[tuple[str, str, float], ...]
    front: tuple[tuple[float, float], ...]
    solver: str
    status: str
    warnings: tuple[str, ...] = ()


def plan_pool(ground: Ground, wish: Wish, *, packer: Pack | None = None) -> PoolPlan:
    """The best plan found. Raises UnavailableError where no replica fits: not enough memory
    (how much is missing), or an SLO that no chain meets (the nearest feasible one)."""
    free = tuple(range(len(ground.machines)))
    table = make_table(ground)
    slo = math.inf if wish.tpot_s_max is None else wish.tpot_s_max
    classes = classify(ground, free)
    patterns = make_patterns(ground, classes, _scopes(classes, len(free)), wish)
    if not patterns:
        patterns = make_patterns(ground, classes, [list(range(len(classes)))], wish)
    if not patterns:
        raise _refusal(ground, classes, wish)
    warnings: list[str] = []
    packing = _pack(patterns, classes, wish, packer, warnings)
    chains = _concrete(ground, table, classes, patterns, packing, slo, warnings)
    left = _left(free, chains)
    while left:
        more = _further(ground, table, left, wish, packer, slo)
        if not more:
            break
        chains += more
        left = _left(left, more)
    rate = sum(chain.rate for chain in chains)
    worth = sorted(
        (
            (c.average.kind, ground.regions[c.average.region], price)
            for c, price in zip(classes, packing.prices, strict=True)
        ),
        key=lambda item: (-item[2], item[0], item[1]),
    )
    return PoolPlan(
        chains=tuple(sorted(chains, key=lambda c: (-c.rate, c.members))),
        idle=left,
        rate_per_s=rate,
        bound_per_s=max(rate, packing.lp_bound),
        worth=tuple(worth),
        front=_front(patterns, classes, wish),
        solver=packing.solver,
        status=packing.status,
        warnings=tuple(warnings),
    )


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


def _pack(
    patterns: Sequence[Pattern],
    classes: Sequence[MachineClass],
    wish: Wish,
    packer: Pack | None,
    warnings: list[str],
) -> Packing:
    """The solver's packing, or the greedy one where it does not do its work."""
    try:
        if packer is not None:
            return packer(patterns, classes, wish.time_limit_s)
        return pack(patterns, classes, time_limit_s=wish.time_limit_s)
    except NoSolverError as error:
        warnings.append(f"planned without the solver: {error}")
        return greedy_packing(patterns, classes)


def greedy_packing(patterns: Sequence[Pattern], classes: Sequence[MachineClass]) -> Packing:
    """The patterns that carry most per machine first, as often as there are machines."""
    left = [len(c.members) for c in classes]
    uses = [0] * len(patterns)
    ranked = sorted(
        range(len(patterns)),
        key=lambda i: (-patterns[i].rate / len(patterns[i].order), patterns[i].order),
    )
    for at in ranked:
        own = patterns[at].uses()
        uses[at] = min(left[index] // count for index, count in own.items())
        for index, count in own.items():
            left[index] -= uses[at] * count
    return Packing(
        uses=tuple(uses),
        lp_bound=math.inf,
        prices=(0.0,) * len(classes),
        solver="greedy",
        status="feasible",
    )


def _concrete(
    ground: Ground,
    table: Table,
    classes: Sequence[MachineClass],
    patterns: Sequence[Pattern],
    packing: Packing,
    slo: float,
    warnings: list[str],
) -> list[Chain]:
    """The packing's replicas with machines; the greedy ones where the packing is impossible."""
    used = [p for p, use in zip(patterns, packing.uses, strict=True) for _ in range(max(0, use))]
    try:
        groups = assign(ground, classes, used)
    except ValueError as error:
        warnings.append(f"the solver's packing was refused: {error}")
        greedy = greedy_packing(patterns, classes)
        used = [p for p, use in zip(patterns, greedy.uses, strict=True) for _ in range(use)]
        groups = assign(ground, classes, used)
    return [c for c in finish(ground, table, groups, tpot_s_max=slo) if c is not None]


def _left(free: Sequence[int], chains: Sequence[Chain]) -> tuple[int, ...]:
    taken = {index for chain in chains for index in chain.members}
    return tuple(index for index in free if index not in taken)


def _further(
    ground: Ground,
    table: Table,
    left: tuple[int, ...],
    wish: Wish,
    packer: Pack | None,
    slo: float,
) -> list[Chain]:
    """Replicas over any regions from machines that the regions leave over."""
    classes = classify(ground, left)
    patterns = make_patterns(ground, classes, [list(range(len(classes)))], wish)
    if not patterns:
        return []
    packing = _pack(patterns, classes, wish, packer, [])
    return _concrete(ground, table, classes, patterns, packing, slo, [])


def _front(
    patterns: Sequence[Pattern], classes: Sequence[MachineClass], wish: Wish
) -> tuple[tuple[float, float], ...]:
    """Tokens/s at most if no replica's token time alone exceeds a limit, for some limits."""
    times = sorted({round(p.tpot_s, 6) for p in patterns})
    chosen = sorted({times[(len(times) - 1) * i // FRONT_POINTS] for i in range(FRONT_POINTS + 1)})
    points: list[tuple[float, float]] = []
    for limit in chosen:
        kept = [p for p in patterns if p.tpot_s <= limit + 1e-6]
        bound, _ = relax(kept, classes, time_limit_s=wish.time_limit_s)
        if not points or bound > points[-1][1] * 1.001:
            points.append((limit, bound))
    return tuple(points)


def _refusal(ground: Ground, classes: Sequence[MachineClass], wish: Wish) -> UnavailableError:
    """Why no replica fits."""
    everything = [list(range(len(classes)))]
    free_wish = Wish(stages_max=None, tpot_s_max=None, time_limit_s=wish.time_limit_s)
    possible = make_patterns(ground, classes, everything, free_wish)
    if not possible:
        return _shortage(ground)
    if wish.stages_max is not None:
        least = min(len(p.order) for p in possible)
        if least > wish.stages_max:
            return UnavailableError(
                f"no chain of at most {wish.stages_max} stages holds the model; the shortest "
                f"has {least}",
                reason="slo_infeasible",
            )
        limited = Wish(stages_max=wish.stages_max, time_limit_s=wish.time_limit_s)
        possible = make_patterns(ground, classes, everything, limited)
    nearest_ms = 1e3 * min(p.tpot_s for p in possible)
    asked_ms = 1e3 * (wish.tpot_s_max or 0.0)
    return UnavailableError(
        f"no chain gives a token every {asked_ms:.1f} ms; the nearest feasible is "
        f"{math.ceil(nearest_ms * 10) / 10:.1f} ms",
        reason="slo_infeasible",
    )


def _shortage(ground: Ground) -> UnavailableError:
    """How much memory is missing."""
    room = sum(m.layers_max(is_first=False, is_last=False) for m in ground.machines)
    most = max(ground.machines, key=lambda m: (m.room_bytes, m.node_id))
    layer_bytes = most.layer_bytes + (most.kv_sequence_bytes if most.kv_bytes is None else 0.0)
    missing = max(1.0, ground.num_layers - room) * layer_bytes
    if room >= ground.num_layers:
        missing = most.first_bytes + most.last_bytes
    share = most.room_bytes / (most.room_bytes + (most.kv_bytes or 0.0))
    return UnavailableError(
        f"not enough memory: {len(ground.machines)} nodes hold at most {room} of "
        f"{ground.num_layers} layers beside the embedding and the LM head; "
        f"{missing / 2**30:.1f} GiB of weights are missing, that is nodes of "
        f"{missing / share / 2**30:.1f} GiB more",
        reason="not_enough_memory",
    )
