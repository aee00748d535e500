"""What no plan exceeds."""

from collections.abc import Sequence

from plait.types import NodeId
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import BATCH_MAX, layers_max


def rate_bound(planners: Sequence[ChainPlanner]) -> float:
    """An upper bound of the tokens/s of all chains together.

    A chain of rate X does X * L layer-steps a second, and a node that holds k layers at most
    k * T(k), where T(k) is limited by its step at the largest batch and by its KV over the least
    trip round a ring. So X_total <= sum over nodes of max_k k * T(k) / L.
    """
    if not planners:
        return 0.0
    total = 0.0
    for node_id in planners[0].profiles:
        total += max(_node_share(planner, node_id) for planner in planners)
    return total


def _node_share(planner: ChainPlanner, node_id: NodeId) -> float:
    profile = planner.profiles[node_id]
    spec, cost = planner.spec, planner.costs[node_id]
    quickest_ms = min(c.layer_ms for c in planner.costs.values())
    others = [n for n in planner.profiles if n != node_id]
    ring_ms = 0.0
    if others:
        ring_ms = min(planner.links.rtt_ms(node_id, n) / 2 for n in others)
        ring_ms += min(planner.links.rtt_ms(n, node_id) / 2 for n in others)
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
