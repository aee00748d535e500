"""Candidate chains as columns: how many nodes of each class, and what such a chain yields."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from plait.types import NodeId
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.classes import EXACT_NODES_MAX, NodeClass

COLUMNS_MAX: Final = 500
STEPS_MAX: Final = 20_000
STAGES_MAX: Final = 16
THOROUGH_NODES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Column:
    """A chain of `planner`'s model over `counts[i]` nodes of class i."""

    planner: ChainPlanner
    counts: tuple[int, ...]
    chain: Chain


def make_columns(
    planners: Sequence[ChainPlanner], classes: Sequence[NodeClass], seeds: Sequence[Column]
) -> list[Column]:
    """Columns of all models: `seeds`, and patterns inside a region, a pair of regions, or all."""
    columns = {(c.planner.spec.model_id, c.counts): c for c in seeds}
    seeded = set(columns)
    scopes = _scopes(classes)
    is_thorough = sum(len(c.members) for c in classes) <= THOROUGH_NODES_MAX
    share = max(20, COLUMNS_MAX // (len(planners) * len(scopes)))
    for planner in planners:
        for scope in scopes:
            found = itertools.islice(_patterns(planner, classes, scope), 4 * share)
            for counts in sorted(found, key=lambda c: (sum(c), c))[:share]:
                key = (planner.spec.model_id, counts)
                if key in columns and key not in seeded:
                    continue
                chain = planner.best(
                    _pick(classes, counts), planner.spec.whole, is_thorough=is_thorough
                )
                if chain is None or chain.score <= 0.0:
                    continue
                if key not in columns or chain.score > columns[key].chain.score:
                    columns[key] = Column(planner, counts, chain)
    return list(columns.values())


def counts_of(classes: Sequence[NodeClass], node_ids: Sequence[NodeId]) -> tuple[int, ...]:
    """How many of the nodes are in each class."""
    chosen = set(node_ids)
    return tuple(sum(member in chosen for member in c.members) for c in classes)


def _pick(classes: Sequence[NodeClass], counts: Sequence[int]) -> list[NodeId]:
    return [n for c, count in zip(classes, counts, strict=True) for n in c.members[:count]]


def _scopes(classes: Sequence[NodeClass]) -> list[list[int]]:
    """Sets of classes that a chain may mix."""
    everything = list(range(len(classes)))
    regions = sorted({c.region for c in classes})
    if len(classes) <= EXACT_NODES_MAX or len(regions) == 1:
        return [everything]
    by_region = {r: [i for i, c in enumerate(classes) if c.region == r] for r in regions}
    scopes = list(by_region.values())
    if len(regions) <= 6:
        pairs = itertools.combinations(regions, 2)
        scopes += [sorted(by_region[a] + by_region[b]) for a, b in pairs]
    return [*scopes, everything] if len(regions) > 2 else scopes


def _patterns(
    planner: ChainPlanner, classes: Sequence[NodeClass], scope: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Multisets of classes with room for all layers, and at most a little more than that."""
    room = [planner.cap(c.members[0], is_first=False, is_last=False) for c in classes]
    usable = sorted((i for i in scope if room[i] > 0), key=lambda i: (-room[i], i))
    num_nodes = sum(len(classes[i].members) for i in usable)
    redundant = num_nodes if num_nodes <= EXACT_NODES_MAX else 2
    need = planner.spec.num_layers
    stages_max = min(STAGES_MAX, need)
    total_left = [0] * (len(usable) + 1)
    for at in range(len(usable) - 1, -1, -1):
        own = usable[at]
        total_left[at] = total_left[at + 1] + room[own] * len(classes[own].members)
    counts = [0] * len(classes)
    steps = 0

    def is_lean(size: int, total: int) -> bool:
        """Without its `redundant` smallest members it would not fit."""
        smallest = [room[i] for i in reversed(usable) for _ in range(counts[i])][:redundant]
        return size <= 1 or total - sum(smallest) < need

    def walk(at: int, size: int, total: int) -> Iterator[tuple[int, ...]]:
        nonlocal steps
        steps += 1
        if steps > STEPS_MAX or total + total_left[at] < need or not is_lean(size, total):
            return
        if at == len(usable):
            yield tuple(counts)
            return
        own = usable[at]
        for take in range(min(len(classes[own].members), stages_max - size), -1, -1):
            counts[own] = take
            yield from walk(at + 1, size + take, total + take * room[own])
        counts[own] = 0

    yield from walk(0, 0, 0)
