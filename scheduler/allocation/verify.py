"""An independent check of a plan. Shares no code with the planners but the model's own figures."""

import math
from typing import Final

from plait.types import NodeId, missing_spans
from scheduler.allocation.problem import Allocation, AllocationProblem
from scheduler.cost import need_bytes

SLACK: Final = 1.001


def violations(problem: AllocationProblem, plan: Allocation) -> list[str]:
    """What is wrong with `plan`, one sentence each; empty where it may be used.

    Checks: known nodes and models, one placement a node, spans inside the model, memory of
    weights, KV and buffers, whole cover of every model that is placed, chains that follow the
    placements without gap or overlap, nodes that must not move, finite figures below the bound.
    """
    found = _placement_violations(problem, plan)
    found += _cover_violations(problem, plan)
    found += _chain_violations(problem, plan)
    rate, bound = plan.objective_tokens_per_s, plan.bound_tokens_per_s
    if not (math.isfinite(rate) and math.isfinite(bound) and rate >= 0.0):
        found.append(f"the objective {rate} or its bound {bound} is not a finite rate")
    elif rate > bound * SLACK:
        found.append(f"the objective {rate:.3f} exceeds its bound {bound:.3f}")
    return found


def _placement_violations(problem: AllocationProblem, plan: Allocation) -> list[str]:
    found: list[str] = []
    nodes = {p.node_id: p for p in problem.nodes}
    specs = {s.model_id: s for s in problem.models}
    held = {p.node_id: p for p in problem.held}
    seen: dict[NodeId, None] = {}
    for placement in plan.placements:
        node_id = placement.node_id
        profile, spec = nodes.get(node_id), specs.get(placement.model_id)
        if node_id in seen:
            found.append(f"node {node_id} is placed twice")
        seen[node_id] = None
        if profile is None or spec is None:
            found.append(f"node {node_id} or model {placement.model_id} is unknown")
            continue
        if placement.span.end > spec.num_layers:
            found.append(f"node {node_id}: layers {placement.span} of {spec.num_layers}")
            continue
        now = held.get(node_id)
        is_kept = now is not None and (now.model_id, now.span) == (
            placement.model_id,
            placement.span,
        )
        if node_id in problem.fixed and now is not None and not is_kept:
            found.append(f"node {node_id} must keep layers {now.span}")
        if is_kept:
            continue  # it is in memory already
        if placement.model_id in profile.refused_models:
            found.append(f"node {node_id}: its owner does not allow {placement.model_id}")
        kv_tokens = max(1, min(problem.kv_tokens_min, spec.context_tokens_max))
        need = need_bytes(profile, spec, placement.span, kv_tokens)
        if need > profile.memory_bytes:
            found.append(f"node {node_id}: {need} bytes needed, {profile.memory_bytes} allowed")
    found += [
        f"node {node_id} must keep its layers but has none in the plan"
        for node_id in problem.fixed
        if node_id in held and node_id in nodes and node_id not in seen
    ]
    return found


def _cover_violations(problem: AllocationProblem, plan: Allocation) -> list[str]:
    found: list[str] = []
    if not plan.placements:
        found.append("the plan places nothing")
    for spec in problem.models:
        spans = [p.span for p in plan.placements if p.model_id == spec.model_id]
        gaps = missing_spans(spans, spec.num_layers) if spans else []
        if gaps:
            missing = ", ".join(str(gap) for gap in gaps)
            found.append(f"model {spec.model_id}: no node for layers {missing}")
    return found


def _chain_violations(problem: AllocationProblem, plan: Allocation) -> list[str]:
    found: list[str] = []
    placed = {p.node_id: p for p in plan.placements}
    layers = {s.model_id: s.num_layers for s in problem.models}
    if plan.placements and not plan.pipelines:
        found.append("the plan has placements but no chain")
    for chain in plan.pipelines:
        stages = [placed.get(node_id) for node_id in chain]
        known = [stage for stage in stages if stage is not None]
        if len(known) != len(chain) or not known or len(set(chain)) != len(chain):
            found.append(f"chain {', '.join(chain)} has an unplaced or repeated node")
            continue
        if len({stage.model_id for stage in known}) != 1:
            found.append(f"chain {', '.join(chain)} mixes models")
            continue
        at = 0
        for stage, after in zip(known, (*known[1:], None), strict=True):
            # A stage may run any part of its span: it must reach over the boundary. One that holds
            # as much as the next one hands over where that one begins.
            is_wide = after is not None and after.span.end <= stage.span.end
            to = after.span.start if after is not None and is_wide else stage.span.end
            if not stage.span.start <= at < to:
                break
            at = to
        if at != layers.get(known[0].model_id):
            found.append(f"chain {', '.join(chain)} has a gap at layer {at}")
    return found
