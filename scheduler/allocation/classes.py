"""Nodes by class: regions by round trip, buckets by speed and memory. Plans count classes, so
their size does not grow with the pool."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.types import NodeId
from scheduler.allocation.chain import ChainPlanner

NEAR_MS: Final = 25.0
"""Round trips up to this join two nodes into a region."""
CLASSES_MAX: Final = 14
EXACT_NODES_MAX: Final = 9
"""Pools up to this size are planned node by node."""


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that plans do not tell apart, least memory first: what fits the first fits all."""

    region: int
    members: tuple[NodeId, ...]


def regions(planner: ChainPlanner, node_ids: Sequence[NodeId]) -> dict[NodeId, int]:
    """Single-link clusters of near nodes; lonely ones are grouped by their way to the
    coordinator, which is all that is known of them."""
    ordered = sorted(node_ids)
    parent = {n: n for n in ordered}

    def root(node_id: NodeId) -> NodeId:
        while parent[node_id] != node_id:
            node_id = parent[node_id]
        return node_id

    for i, a in enumerate(ordered):
        for b in ordered[i + 1 :]:
            if planner.links.rtt_ms(a, b) <= NEAR_MS:
                parent[root(b)] = root(a)
    sizes: dict[NodeId, int] = {}
    for node_id in ordered:
        sizes[root(node_id)] = sizes.get(root(node_id), 0) + 1
    names: dict[tuple[str, float], int] = {}
    region: dict[NodeId, int] = {}
    for node_id in ordered:
        top = root(node_id)
        distance = planner.links.coordinator_rtt_ms(node_id)
        key = (top, 0.0) if sizes[top] > 1 else ("", float(round(math.log2(1.0 + distance))))
        region[node_id] = names.setdefault(key, len(names))
    return region


def classify(planners: Sequence[ChainPlanner], node_ids: Sequence[NodeId]) -> list[NodeClass]:
    """Classes of the free nodes: every node its own in a small pool, else buckets that are made
    coarser until there are few."""
    first = planners[0]
    region = regions(first, node_ids)
    if len(node_ids) <= EXACT_NODES_MAX:
        return [NodeClass(region[n], (n,)) for n in sorted(node_ids)]
    classes: list[NodeClass] = []
    for step in (1.15, 1.3, 1.6, 2.2, 4.0):
        groups: dict[tuple[float, ...], list[NodeId]] = {}
        for node_id in sorted(node_ids):
            profile = first.profiles[node_id]
            key = [
                float(region[node_id]),
                float(profile.compute_dtype.num_bytes),
                float(profile.kv_bytes_per_token(first.spec, 1)),
                _bucket(float(max(1, profile.memory_bytes)), step),
            ]
            key += [_bucket(planner.costs[node_id].layer_ms, step) for planner in planners]
            refused = profile.refused_models
            key += [float(planner.spec.model_id in refused) for planner in planners if refused]
            groups.setdefault(tuple(key), []).append(node_id)
        classes = [
            NodeClass(
                region[members[0]],
                tuple(sorted(members, key=lambda n: (first.profiles[n].memory_bytes, n))),
            )
            for _, members in sorted(groups.items())
        ]
        if len(classes) <= CLASSES_MAX:
            break
    return classes


def _bucket(figure: float, step: float) -> float:
    return float(math.floor(math.log(figure) / math.log(step)))
