"""A pool that was planned before, planned on: the fewest moves for those who stand, whole chains of
newcomers beside them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from plait.errors import UnavailableError
from scheduler.planning.assign import Chain
from scheduler.planning.ground import Ground, Machine, Wish
from scheduler.planning.pool import PoolPlan
from scheduler.planning.repair import Move, Standing, repair_pool

PlanPool = Callable[[Ground, Wish], PoolPlan]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAgain:
    """The plan to go on with, all changes on the way there, and what each node has to read."""

    plan: PoolPlan
    moves: tuple[Move, ...]
    read_bytes: tuple[float, ...]

    @property
    def num_survivors_moved(self) -> int:
        """Nodes that held a span and hold another, or none, now."""
        return sum(move.before is not None for move in self.moves)


def plan_again(ground: Ground, standing: Standing, wish: Wish, plan: PlanPool) -> PlannedAgain:
    """`standing` repaired (`repair_pool`), then what is still idle planned by `plan`, which moves
    nobody who stands in a chain."""
    repaired = repair_pool(ground, standing, wish).plan
    further = _further(ground, repaired.idle, wish, plan)
    chains = tuple(sorted((*repaired.chains, *further), key=lambda c: (-c.rate, c.members)))
    taken = {i for chain in chains for i in chain.members}
    rate = sum(chain.rate for chain in chains)
    whole = replace(
        repaired,
        chains=chains,
        idle=tuple(i for i in range(len(ground.machines)) if i not in taken),
        rate_per_s=rate,
        bound_per_s=max(rate, repaired.bound_per_s),
    )
    moves = _moves(ground, standing, chains)
    machines = {machine.node_id: machine for machine in ground.machines}
    return PlannedAgain(
        plan=whole,
        moves=moves,
        read_bytes=tuple(_read_bytes(machines[m.node_id], m, ground.num_layers) for m in moves),
    )


def _further(
    ground: Ground, idle: tuple[int, ...], wish: Wish, plan: PlanPool
) -> tuple[Chain, ...]:
    """Chains of idle machines alone; none where they carry no model."""
    if not idle:
        return ()
    try:
        found = plan(replace(ground, machines=tuple(ground.machines[i] for i in idle)), wish)
    except UnavailableError:
        return ()
    return tuple(replace(c, members=tuple(idle[i] for i in c.members)) for c in found.chains)


def _moves(ground: Ground, standing: Standing, chains: tuple[Chain, ...]) -> tuple[Move, ...]:
    """What changes, in the order of machines; who is gone does not move."""
    before: dict[str, Span] = {}
    for stages in standing.chains:
        start = 0
        for node_id, count in stages:
            before[node_id] = (start, start + count)
            start += count
    after: dict[str, Span] = {}
    for chain in chains:
        start = 0
        for index, count in zip(chain.members, chain.counts, strict=True):
            after[ground.machines[index].node_id] = (start, start + count)
            start += count
    ids = [machine.node_id for machine in ground.machines]
    return tuple(
        Move(node_id=n, before=before.get(n), after=after.get(n))
        for n in ids
        if before.get(n) != after.get(n)
    )


def _read_bytes(machine: Machine, move: Move, num_layers: int) -> float:
    """Weights that the machine has not in memory yet; with the embedding at the first layer, the
    head at the last."""
    if move.after is None:
        return 0.0
    start, end = move.after
    had_start, had_end = move.before if move.before is not None else (-1, -1)
    kept = max(0, min(end, had_end) - max(start, had_start))
    total = (end - start - kept) * machine.layer_bytes
    total += machine.first_bytes if start == 0 and had_start != 0 else 0.0
    return total + (machine.last_bytes if end == num_layers and had_end != num_layers else 0.0)
