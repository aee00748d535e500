"""What no plan exceeds."""

from collections.abc import Sequence

from plait.types import NodeId
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import BATCH_MAX, Links, layers_max


def rate_bound(planners: Sequence[ChainPlanner]) -> float:
    """An upper bound of the tokens/s of all chains together.

    A chain of rate X does X * L layer-steps a second, and a node that holds k layers at most
    k * T(k), where T(k) is limited by its step at the largest batch and by its KV over the least
    trip round a ring. So X_total <= sum over nodes of max_k k * T(k) / L.
    """
    if not planners:
        return 0.0
    rings_ms = nearest_rings_ms(planners[0].links, list(planners[0].profiles))
    quickest_ms = [min(c.layer_ms for c in p.costs.values()) for p in planners]
    total = 0.0
    for node_id, ring_ms in rings_ms.items():
        total += max(
            _node_share(planner, node_id, ring_ms, layer_ms)
            for planner, layer_ms in zip(planners, quickest_ms, strict=True)
        )
    return total


def nearest_rings_ms(links: Links, node_ids: Sequence[NodeId]) -> dict[NodeId, float]:
    """By node: half the shortest round trip to another node and half the shortest one from
    another. Looks at measured pairs and, by way of the coordinator, at the nearest few alone."""
    ways: dict[NodeId, dict[NodeId, float]] = {n: {} for n in node_ids}
    measured = {(a, b): ms for (a, b), ms in links.measured().items() if a in ways and b in ways}
    for (a, b), rtt_ms in measured.items():
        ways[b][a] = rtt_ms
    for (a, b), rtt_ms in measured.items():
        ways[a][b] = rtt_ms
    nearest = sorted(node_ids, key=links.coordinator_rtt_ms)
    rings_ms: dict[NodeId, float] = {}
    for node_id in node_ids:
        known = ways[node_id]
        there = [rtt_ms for other, rtt_ms in known.items() if other != node_id]
        back = [ways[other][node_id] for other in known if other != node_id]
        for other in nearest:
            if other != node_id and other not in known:
                there.append(links.predicted_rtt_ms(node_id, other))
                back.append(there[-1])
                break
        rings_ms[node_id] = min(there) / 2 + min(back) / 2 if there else 0.0
    return rings_ms


def _node_share(
    planner: ChainPlanner, node_id: NodeId, ring_ms: float, quickest_ms: float
) -> float:
    profile = planner.profiles[node_id]
    spec, cost = planner.spec, planner.costs[node_id]
    room = layers_max(profile, spec, planner.kv_tokens_min, is_first=False, is_last=False)
    best = 0.0
    for count in range(1, room + 1):
        trip_ms = cost.decode_ms(count, 1) + (spec.num_layers - count) * quickest_ms
        if count < spec.num_layers:
            trip_ms += ring_ms
        free = profile.memory_bytes
        free -= count * spec.layer_bytes(profile.compute_dtype)
        slots = free // profile.kv_bytes_per_token(spec, count)
        rate = min(
            BATCH_MAX / cost.decode_ms(count, BATCH_MAX),
            (slots // planner.sequence_tokens) / trip_ms,
        )
        best = max(best, 1e3 * count * rate)
    return best / spec.num_layers
