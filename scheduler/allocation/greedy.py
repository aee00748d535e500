"""Chains by growth: no solver needed. Always available; the ILP starts from its chains."""

from collections.abc import Sequence
from typing import Final

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import Chain, ChainPlanner

SEEDS_MAX: Final = 6
SMALL_POOL: Final = 16


def greedy_chains(
    planner: ChainPlanner, node_ids: Sequence[NodeId], target: LayerSpan
) -> list[Chain]:
    """Disjoint chains over `target`, the one worth most per node first, until none fits."""
    free = sorted(node_ids)
    chains: list[Chain] = []
    while free:
        grown = grow(planner, free, target)
        if not grown:
            break
        best = max(grown, key=lambda c: (c.score / len(c.stages), -len(c.stages), c.node_ids))
        chains.append(best)
        taken = set(best.node_ids)
        free = [n for n in free if n not in taken]
    return chains


def grow(planner: ChainPlanner, free: Sequence[NodeId], target: LayerSpan) -> list[Chain]:
    """One chain per way of adding nodes until the layers fit: roomiest first, quickest first, and
    nearest first from a few seeds."""
    room = {n: planner.cap(n, is_first=False, is_last=False) for n in free}
    usable = [n for n in free if room[n] >= 1]
    roomiest = sorted(usable, key=lambda n: (-room[n], planner.costs[n].layer_ms, n))
    quickest = sorted(usable, key=lambda n: (planner.costs[n].layer_ms, -room[n], n))
    orders = [roomiest, quickest]
    num_seeds = SEEDS_MAX if len(usable) <= SMALL_POOL else 2
    for seed in dict.fromkeys(roomiest[:num_seeds] + quickest[:num_seeds]):
        rtt = planner.links.rtt_ms
        orders.append(
            sorted(usable, key=lambda n: (n != seed, round(rtt(seed, n) / 10), -room[n], n))
        )
    chains: dict[tuple[tuple[NodeId, LayerSpan], ...], Chain] = {}
    for order in orders:
        chain = _grow_along(planner, order, room, target)
        if chain is not None:
            chains[chain.stages] = chain
    return list(chains.values())


def _grow_along(
    planner: ChainPlanner,
    order: Sequence[NodeId],
    room: dict[NodeId, int],
    target: LayerSpan,
) -> Chain | None:
    """The first prefix of `order` that fits."""
    total = 0
    for count in range(1, min(len(order), len(target)) + 1):
        total += room[order[count - 1]]
        if total < len(target):
            continue
        chain = planner.best(order[:count], target)
        if chain is not None:
            return chain
    return None
