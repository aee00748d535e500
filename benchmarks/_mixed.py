"""Pools as our planner leaves them, each chain with its own boundaries, and after churn."""

from dataclasses import dataclass
from random import Random

from benchmarks._simulated_pools import pool_of
from plait.types import ModelSpec
from scheduler.cost import stage_cost
from scheduler.selection import Candidate
from scheduler.selection.places import Places
from scheduler.simulation.pool_planner import pool_planner
from scheduler.simulation.words import simulated_profile, simulated_spec


@dataclass(frozen=True, slots=True)
class Mixed:
    """What selection is asked about."""

    spec: ModelSpec
    hop_bytes: int
    candidates: list[Candidate]
    places: Places


def planned(num_nodes: int, *, num_leaving: int = 0, seed: int = 0) -> Mixed:
    """A 72B model planned over volunteers' machines, as busy as they may be. Where some leave, the
    rest of their chains is planned anew and the others stay: more boundaries."""
    rng = Random(seed)
    pool = pool_of(num_nodes, None)
    spec = simulated_spec(pool)
    pipelines = pool_planner(pool, range(num_nodes))
    gone = set(rng.sample([i for p in pipelines for i, _ in p], num_leaving))
    whole = [p for p in pipelines if not gone & {i for i, _ in p}]
    used = {i for p in whole for i, _ in p}
    free = [i for i in range(num_nodes) if i not in used and i not in gone]
    if num_leaving:
        pipelines = [*whole, *pool_planner(pool, free)]
    profiles = [simulated_profile(pool, i, spec) for i in range(num_nodes)]
    machines = pool.ground.machines
    places = Places(
        profiles,
        {p.node_id: m.region for p, m in zip(profiles, machines, strict=True)},
        {p.node_id: 1e3 * m.last_mile_s for p, m in zip(profiles, machines, strict=True)},
        [[1e3 * trip_s for trip_s in row] for row in pool.ground.region_rtt_s],
    )
    candidates = [
        Candidate(
            node_id=profiles[i].node_id,
            incarnation=1,
            span=span,
            cost=stage_cost(profiles[i], spec),
            kv_tokens_free=rng.randrange(6_000, 60_000),
            kv_tokens_max=60_000,
            num_requests=rng.randrange(8),
            queue_tokens=rng.choice((0, 0, 0, 200)),
        )
        for pipeline in pipelines
        for i, span in pipeline
    ]
    return Mixed(spec, round(pool.ground.activation_bytes), candidates, places)
