"""An independent check of a cluster's plan: it counts again, and searches nothing."""

import math
from typing import Final

from scheduler.planning.cluster import Cluster, depth, placement_flow
from scheduler.planning.cluster_plan import ClusterPlan

TOLERANCE: Final = 1e-3


def cluster_violations(
    cluster: Cluster, plan: ClusterPlan, *, stages_max: int | None = None
) -> list[str]:
    """What is wrong with `plan`, one sentence each: nodes unknown, spans outside the model or too
    many for their node, a flow that the links do not carry, too many stages."""
    found: list[str] = []
    for index, (start, end) in sorted(plan.spans.items()):
        if not 0 <= index < len(cluster.node_ids):
            found.append(f"no node {index}")
            continue
        name = cluster.node_ids[index]
        if not 0 <= start < end <= cluster.num_layers:
            found.append(f"{name} holds layers {start} to {end} of {cluster.num_layers}")
        elif end - start not in cluster.table[cluster.kinds[index]]:
            found.append(f"{name} cannot hold {end - start} layers")
    if found:
        return found
    flow = placement_flow(cluster, plan.spans)
    if not math.isclose(flow, plan.flow_per_s, rel_tol=TOLERANCE):
        found.append(f"it carries {flow:.2f} tokens/s, not {plan.flow_per_s:.2f}")
    if not flow <= plan.bound_per_s * (1.0 + TOLERANCE):
        found.append(f"its flow {flow:.2f} exceeds its bound {plan.bound_per_s:.2f}")
    if stages_max is not None and depth(cluster, plan.spans) > stages_max:
        found.append(f"it has more than {stages_max} stages")
    return found
