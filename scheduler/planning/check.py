"""An independent check of a pool's plan. Shares the cost model with the planner, and no search."""

import math
from collections.abc import Sequence

from scheduler.planning.ground import Ground, Replica, replica_figures
from scheduler.planning.pool import PoolPlan

TOLERANCE = 1e-3


def pool_violations(ground: Ground, plan: PoolPlan) -> list[str]:
    """What is wrong with `plan`, one sentence each: nodes twice or unknown, layers left out or too
    many for a node, KV for nobody, rates that the cost model does not give."""
    found: list[str] = []
    seen: set[int] = set()
    total = 0.0
    for number, chain in enumerate(plan.chains, start=1):
        where = f"chain {number}"
        last = len(chain.members) - 1
        if len(chain.counts) != len(chain.members) or not chain.members:
            found.append(f"{where} has {len(chain.members)} nodes and {len(chain.counts)} spans")
            continue
        if sum(chain.counts) != ground.num_layers:
            found.append(f"{where} holds {sum(chain.counts)} of {ground.num_layers} layers")
        is_known = True
        for position, (index, layers) in enumerate(zip(chain.members, chain.counts, strict=True)):
            if not 0 <= index < len(ground.machines):
                found.append(f"{where}: no node {index}")
                is_known = False
                continue
            if index in seen:
                found.append(f"{where}: {ground.machines[index].node_id} stands in two places")
            seen.add(index)
            room = ground.machines[index].sequences_max(
                layers, is_first=position == 0, is_last=position == last
            )
            if layers < 1 or room < 1:
                found.append(f"{where}: {ground.machines[index].node_id} cannot hold {layers}")
        if not is_known or found:
            continue
        figures = replica_figures(
            ground, Replica(tuple(zip(chain.members, chain.counts, strict=True)))
        )
        total += figures.rate_per_s
        if not math.isclose(figures.rate_per_s, chain.rate, rel_tol=TOLERANCE):
            found.append(f"{where} carries {figures.rate_per_s:.2f}, not {chain.rate:.2f}")
    if not found and not math.isclose(total, plan.rate_per_s, rel_tol=TOLERANCE, abs_tol=1e-9):
        found.append(f"the chains carry {total:.2f} in all, not {plan.rate_per_s:.2f}")
    if plan.rate_per_s > plan.bound_per_s * (1.0 + TOLERANCE):
        found.append(f"the rate {plan.rate_per_s:.2f} exceeds its bound {plan.bound_per_s:.2f}")
    return found


def shared_violations(grounds: Sequence[Ground], plans: Sequence[PoolPlan]) -> list[str]:
    """The same of plans for several models on the same machines: each for itself, and no machine
    in two of them."""
    if len(plans) != len(grounds):
        return [f"{len(plans)} plans for {len(grounds)} models"]
    found: list[str] = []
    owner: dict[int, int] = {}
    for number, (ground, plan) in enumerate(zip(grounds, plans, strict=True)):
        found += [f"model {number + 1}: {wrong}" for wrong in pool_violations(ground, plan)]
        for index in (i for chain in plan.chains for i in chain.members):
            if owner.setdefault(index, number) != number:
                found.append(f"machine {index} serves models {owner[index] + 1} and {number + 1}")
    return found
