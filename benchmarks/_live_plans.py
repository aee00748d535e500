"""Plans and routes of live networks of synthetic nodes: four speeds, seven memory sizes, four
regions."""

import statistics
import time
from dataclasses import dataclass, replace
from typing import Final

from plait.types import (
    Architecture,
    DType,
    LayerSpan,
    LayerTiming,
    ModelId,
    ModelSpec,
    NodeId,
    NodeProfile,
)
from scheduler.allocation import AllocationProblem, allocate, allocate_greedy
from scheduler.cost import Links, stage_cost
from scheduler.selection import Candidate, Query, select_route

SIZES: Final = (3, 8, 16, 64, 256)
UNSOLVED_SIZES: Final = (64, 1_000)
GIB: Final = 1 << 30
MODEL: Final = ModelSpec(
    model_id=ModelId("32-layers"),
    architecture=Architecture.LLAMA,
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14_336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    context_tokens_max=8_192,
    norm_eps=1e-5,
    rope_theta=5e5,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One size of pool."""

    num_nodes: int
    plan_ms: float
    solver: str
    num_chains: int
    tokens_per_s: float
    over_greedy: float
    of_bound: float
    route_us: float


@dataclass(frozen=True, slots=True)
class UnsolvedRow:
    """One size of pool without a solver, which the coordinator's loop waits for: CPU seconds of a
    plan, and of its repair after a stage of one chain is gone."""

    num_nodes: int
    plan_s: float
    repair_s: float
    tokens_per_s: float
    repaired_per_s: float


def profile(index: int) -> NodeProfile:
    """A volunteer's machine; 7 to 13 GiB, so that nobody holds the model alone."""
    layer_ms = 0.4 + 0.3 * (index * 7 % 4)
    timing = LayerTiming(
        model_id=MODEL.model_id,
        decode_layer_ms=layer_ms,
        decode_layer_ms_per_extra=layer_ms / 20,
        prefill_layer_ms_per_token=layer_ms / 50,
        head_ms=2.0,
        embed_ms=0.01,
        step_overhead_ms=0.5,
    )
    return NodeProfile(
        node_id=NodeId(f"n{index:04d}"),
        display_name=f"n{index}",
        device_kind="cuda",
        device_name="synthetic",
        memory_bytes=(7 + index % 7) * GIB,
        memory_bytes_per_s=6e11,
        flops_per_s=6e13,
        compute_dtype=DType.BFLOAT16,
        coordinator_rtt_ms=6.0 + 25.0 * (index % 4),
        up_bytes_per_s=6e6,
        down_bytes_per_s=3e7,
        timings=(timing,),
        addresses=(),
    )


def measure(num_nodes: int) -> Row:
    """Plan one pool and route over it."""
    nodes = tuple(profile(i) for i in range(num_nodes))
    pairs = tuple(
        ((a.node_id, b.node_id), 12.0 if i % 4 == j % 4 else 90.0)
        for i, a in enumerate(nodes)
        for j, b in enumerate(nodes[:i])
    )
    problem = AllocationProblem(
        models=(MODEL,),
        nodes=nodes,
        kv_tokens_min=2_048,
        wire_dtype=DType.BFLOAT16,
        rtt_ms=pairs,
    )
    started = time.perf_counter()
    plan = allocate(problem)
    plan_ms = 1e3 * (time.perf_counter() - started)
    greedy = allocate_greedy(problem)
    spans = {p.node_id: p.span for p in plan.placements}
    return Row(
        num_nodes,
        plan_ms,
        plan.solver,
        len(plan.pipelines),
        plan.objective_tokens_per_s,
        plan.objective_tokens_per_s / greedy.objective_tokens_per_s,
        plan.objective_tokens_per_s / plan.bound_tokens_per_s,
        route_us(nodes, spans, Links(nodes, pairs)),
    )


def measure_unsolved(num_nodes: int) -> UnsolvedRow:
    """Nothing of links is measured: all hops are by way of the coordinator."""
    nodes = tuple(profile(i) for i in range(num_nodes))
    problem = AllocationProblem(
        models=(MODEL,), nodes=nodes, kv_tokens_min=2_048, wire_dtype=DType.BFLOAT16
    )
    started = time.process_time()
    plan = allocate_greedy(problem)
    planned = time.process_time()
    lost = plan.pipelines[0][0]
    left = tuple(node for node in nodes if node.node_id != lost)
    repaired = allocate_greedy(replace(problem, nodes=left, held=plan.placements, is_repair=True))
    return UnsolvedRow(
        num_nodes,
        planned - started,
        time.process_time() - planned,
        plan.objective_tokens_per_s,
        repaired.objective_tokens_per_s,
    )


def route_us(nodes: tuple[NodeProfile, ...], spans: dict[NodeId, LayerSpan], links: Links) -> float:
    """Median time to choose a route."""
    candidates = [
        Candidate(
            node_id=node.node_id,
            incarnation=1,
            span=spans[node.node_id],
            cost=stage_cost(node, MODEL),
            kv_tokens_free=2_048,
            kv_tokens_max=2_048,
        )
        for node in nodes
        if node.node_id in spans
    ]
    query = Query(spec=MODEL, prompt_tokens=200, new_tokens=128, kv_tokens=328, hop_bytes=8_192)
    taken = []
    for _ in range(15):
        started = time.perf_counter()
        select_route(candidates, query, links)
        taken.append(1e6 * (time.perf_counter() - started))
    return statistics.median(taken)
