"""Plans of nominal pools and clusters, for people, for programs, and as a file of placements."""

import math
from typing import TYPE_CHECKING

from plait.cli.reasons import by_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from plait.cli.plan_nominal import NominalPool
    from scheduler.planning.cluster import Cluster
    from scheduler.planning.cluster_plan import ClusterPlan
    from scheduler.planning.pool import PoolPlan

FRONT_SHOWN = 6


def gap_percent(rate: float, bound: float) -> float:
    """How far a plan is from its bound."""
    return 100.0 * (1.0 - rate / bound) if bound > 0.0 else 0.0


def pool_file(pool: "NominalPool", plan: "PoolPlan") -> dict[str, object]:
    """{"pipelines": [[{"node", "start", "end"}, ...], ...]}, and what a later plan that starts
    from this one has to know."""
    return {
        "pipelines": chain_stages(pool, plan),
        "model": pool.model,
        "chain_tokens_per_s": [round(chain.rate, 3) for chain in plan.chains],
    }


def chain_stages(pool: "NominalPool", plan: "PoolPlan") -> list[list[dict[str, object]]]:
    """{"node", "start", "end"} of each stage, in order, chain by chain."""
    chains = []
    for chain in plan.chains:
        stages: list[dict[str, object]] = []
        at = 0
        for index, layers in zip(chain.members, chain.counts, strict=True):
            node_id = pool.ground.machines[index].node_id
            stages.append({"node": node_id, "start": at, "end": at + layers})
            at += layers
        chains.append(stages)
    return chains


def cluster_file(cluster: "Cluster", plan: "ClusterPlan") -> dict[str, object]:
    """{"<node>": [start, end], ...}."""
    return {cluster.node_ids[i]: list(span) for i, span in sorted(plan.spans.items())}


def pool_json(pool: "NominalPool", plan: "PoolPlan", solve_ms: int) -> dict[str, object]:
    """Everything about the plan as plain data. A greedy plan has no bound."""
    is_bounded = math.isfinite(plan.bound_per_s)
    machines = pool.ground.machines
    return {
        **pool_file(pool, plan),
        "tokens_per_s": round(plan.rate_per_s, 3),
        "bound_tokens_per_s": round(plan.bound_per_s, 3) if is_bounded else None,
        "gap_percent": (
            round(gap_percent(plan.rate_per_s, plan.bound_per_s), 3) if is_bounded else None
        ),
        "tpot_ms_single": [round(1e3 * c.tpot_s, 3) for c in plan.chains],
        "standing_by": [machines[i].node_id for i in plan.idle],
        "front": [
            {"tpot_ms_max": round(1e3 * tpot_s, 3), "tokens_per_s_max": round(rate, 3)}
            for tpot_s, rate in plan.front
        ],
        "one_more": [
            {"kind": kind, "region": region, "tokens_per_s": round(value, 3)}
            for kind, region, value in plan.worth
        ],
        "solver": plan.solver,
        "status": plan.status,
        "solve_ms": solve_ms,
        "warnings": [*pool.notes, *plan.warnings],
    }


def cluster_json(cluster: "Cluster", plan: "ClusterPlan", solve_ms: int) -> dict[str, object]:
    """Everything about the plan as plain data."""
    return {
        "placement": cluster_file(cluster, plan),
        "tokens_per_s": round(plan.flow_per_s, 3),
        "bound_tokens_per_s": round(plan.bound_per_s, 3),
        "gap_percent": round(gap_percent(plan.flow_per_s, plan.bound_per_s), 3),
        "is_proved": plan.is_proved,
        "num_stages": plan.num_stages,
        "front": [{"stages": size, "tokens_per_s": round(rate, 3)} for size, rate in plan.front],
        "one_more": [{"kind": kind, "tokens_per_s": round(value, 3)} for kind, value in plan.worth],
        "solver": plan.solver,
        "solve_ms": solve_ms,
        "warnings": list(plan.warnings),
    }


def show_pool(
    console: "Console", pool: "NominalPool", plan: "PoolPlan", solve_ms: int, *, is_explained: bool
) -> None:
    """Chains, figures, and what would help."""
    from rich.table import Table

    machines, regions = pool.ground.machines, pool.ground.regions
    table = Table("chain", "tokens/s", "ms/token alone", "stages: node, region, layers")
    for at, chain in enumerate(plan.chains):
        stages = ", ".join(
            f"{machines[i].node_id} {regions[machines[i].region]} {k}"
            for i, k in zip(chain.members, chain.counts, strict=True)
        )
        row = (str(at + 1), f"{chain.rate:.1f}", f"{1e3 * chain.tpot_s:.1f}", stages)
        table.add_row(*row)
    console.print(table)
    gap = gap_percent(plan.rate_per_s, plan.bound_per_s)
    bound = f"LP bound {plan.bound_per_s:.1f}, gap {gap:.1f} %"
    if plan.solver == "exhaustive":
        bound = "no plan of these nodes carries more"
    elif plan.solver == "greedy":
        bound = "no bound is known"
    elif plan.solver == "repair":
        bound = f"no plan from nothing exceeds {plan.bound_per_s:.1f}"
    console.print(
        f"{pool.model}: {len(plan.chains)} chains, {plan.rate_per_s:.1f} tokens/s; {bound} "
        f"({plan.solver}, {plan.status}, {solve_ms} ms); {len(plan.idle)} nodes stand by"
    )
    front = "; ".join(f"{1e3 * t:.0f} ms: {rate:.0f}" for t, rate in plan.front[:FRONT_SHOWN])
    if front:
        console.print(f"tokens/s at most, if a token alone may take that long: {front}")
    worth = [item for item in plan.worth if item[2] > 0.0][:FRONT_SHOWN]
    if worth:
        added = "; ".join(f"{kind} in {region} {value:.1f}" for kind, region, value in worth)
        console.print(f"one more node would add at most, in tokens/s: {added}")
    if is_explained:
        explain_pool(console, pool, plan)
    _notes(console, [*pool.notes, *plan.warnings])


def explain_pool(console: "Console", pool: "NominalPool", plan: "PoolPlan") -> None:
    """Why each node got its layers; nodes of one reason together."""
    from scheduler.planning.explain import reasons

    for names, reason in by_reason(reasons(pool.ground, plan)):
        console.print(f"{names}: {reason}", markup=False)


def show_cluster(
    console: "Console",
    cluster: "Cluster",
    plan: "ClusterPlan",
    solve_ms: int,
    *,
    is_explained: bool,
) -> None:
    """Stages, figures, and what would help."""
    from rich.table import Table

    table = Table("layers", "nodes", "tokens/s together")
    for span in sorted(set(plan.spans.values())):
        own = [i for i, other in plan.spans.items() if other == span]
        names = ", ".join(f"{cluster.node_ids[i]} ({cluster.types[cluster.kinds[i]]})" for i in own)
        total = sum(cluster.table[cluster.kinds[i]].get(span[1] - span[0], 0.0) for i in own)
        table.add_row(f"{span[0]}-{span[1] - 1}", names, f"{total:.1f}")
    console.print(table)
    proof = "proved the best" if plan.is_proved else "no placement exceeds the bound"
    console.print(
        f"{plan.flow_per_s:.2f} tokens/s over {plan.num_stages} stages; bound "
        f"{plan.bound_per_s:.2f}, gap {gap_percent(plan.flow_per_s, plan.bound_per_s):.1f} %, "
        f"{proof} ({plan.solver}, {solve_ms} ms)"
    )
    front = "; ".join(f"{size} stages: {rate:.1f}" for size, rate in plan.front)
    console.print(f"stages against tokens/s: {front}")
    worth = "; ".join(f"{name} {value:.1f}" for name, value in plan.worth)
    console.print(f"one more node would add, if no link binds, in tokens/s: {worth}")
    if is_explained:
        for names, reason in by_reason(_cluster_reasons(cluster, plan)):
            console.print(f"{names}: {reason}", markup=False)
    _notes(console, plan.warnings)


def _cluster_reasons(cluster: "Cluster", plan: "ClusterPlan") -> "Iterator[tuple[str, str]]":
    for i, (start, end) in sorted(plan.spans.items()):
        kind, num_layers = cluster.kinds[i], end - start
        rate = cluster.table[kind].get(num_layers, 0.0)
        beside = sum(1 for span in plan.spans.values() if span == (start, end)) - 1
        others = {0: "alone", 1: "beside one other"}.get(beside, f"beside {beside} others")
        yield (
            cluster.node_ids[i],
            f"{num_layers} {'layer' if num_layers == 1 else 'layers'}, which "
            f"{cluster.types[kind]} carries at {rate:.1f} tokens/s, {others} on them",
        )


def _notes(console: "Console", notes: "list[str] | tuple[str, ...]") -> None:
    for note in notes:
        console.print(f"[yellow]note[/]: {note}")
