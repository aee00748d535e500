"""Chains by growth: no solver needed. Always available; the ILP starts from its chains."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.fit import Room, ends_fit

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


def first_chain(
    planner: ChainPlanner, node_ids: Sequence[NodeId], target: LayerSpan
) -> Chain | None:
    """The first of `greedy_chains`; None where there is none."""
    grown = grow(planner, sorted(node_ids), target)
    return max(
        grown, key=lambda c: (c.score / len(c.stages), -len(c.stages), c.node_ids), default=None
    )


def grow(planner: ChainPlanner, free: Sequence[NodeId], target: LayerSpan) -> list[Chain]:
    """One chain per way of adding nodes until the layers fit: roomiest first, quickest first, and
    nearest first from a few seeds."""
    orders = planner.orders
    among = set(free)
    looked_at = max(len(target), SMALL_POOL + 1)

    def in_order(of: Sequence[NodeId], num_max: int = looked_at) -> list[NodeId]:
        """The first free ones."""
        return list(islice((n for n in of if n in among), num_max))

    roomiest, quickest = in_order(orders.roomiest), in_order(orders.quickest)
    num_seeds = SEEDS_MAX if len(roomiest) <= SMALL_POOL else 2
    ways = [roomiest, quickest]
    for seed in dict.fromkeys(roomiest[:num_seeds] + quickest[:num_seeds]):
        ways.append(in_order(orders.nearest(seed)))
    rooms = orders.rooms(target, planner.spec.num_layers)
    chains: dict[tuple[tuple[NodeId, LayerSpan], ...], Chain] = {}
    for order in ways:
        chain = _grow_along(planner, order, rooms, target)
        if chain is not None:
            chains[chain.stages] = chain
    if not chains:
        # Nodes with room for the embedding or the head may be neither roomy nor quick otherwise.
        every = in_order(orders.roomiest, len(among))
        ends = sorted(every, key=lambda n: (-_ends_room(rooms[n]), -rooms[n].plain, n))
        chain = _grow_along(planner, ends, rooms, target)
        return [chain] if chain is not None else []
    return list(chains.values())


def grow_smallest(planner: ChainPlanner, free: Sequence[NodeId], target: LayerSpan) -> Chain | None:
    """A chain of the nodes with the least memory that together suffice; None where it does not."""
    rooms = planner.orders.rooms(target, planner.spec.num_layers)
    among = set(free)
    holders = [n for n in planner.orders.roomiest if n in among and rooms[n].plain > 0]
    return _grow_along(planner, holders[::-1], rooms, target)


def _grow_along(
    planner: ChainPlanner,
    order: Sequence[NodeId],
    rooms: Mapping[NodeId, Room],
    target: LayerSpan,
) -> Chain | None:
    """The first prefix of `order` that fits."""
    total = 0
    for count in range(1, min(len(order), len(target)) + 1):
        total += rooms[order[count - 1]].plain
        if total < len(target) or not ends_fit([rooms[n] for n in order[:count]], len(target)):
            continue
        chain = planner.best(order[:count], target)
        if chain is not None:
            return chain
    return None


def _ends_room(room: Room) -> int:
    return room.first + room.last + room.alone
