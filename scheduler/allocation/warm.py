"""Plans that use what lies on nodes' disks, as if they held it, where that costs little."""

from collections.abc import Iterator, Mapping
from typing import Final

from plait.errors import UnavailableError
from plait.types import NodeId, missing_spans
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.draft import ChainChooser, Draft, draft_plan
from scheduler.allocation.moves import moved
from scheduler.allocation.problem import AllocationProblem, Placement
from scheduler.cost import kv_tokens_room

LITTLE: Final = 1.05
"""A plan may be worth this much less where nodes fetch less for it: weights come once, tokens every
day, but until the weights are there nobody is served."""


def warm_draft(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    held: Mapping[NodeId, Placement],
    draft: Draft,
    choose: ChainChooser,
) -> Draft:
    """`draft`, or a plan of nearly the same worth for which nodes fetch less from afar."""
    best, least = draft, moved(problem, draft.placements()).weight
    for keep in _keeps(problem, planners, held):
        try:
            warm = draft_plan(planners, keep, choose)
        except UnavailableError:
            continue
        weight = moved(problem, warm.placements()).weight
        is_served = warm.worth()[:2] >= draft.worth()[:2]
        if is_served and warm.score * LITTLE >= draft.score and weight < least:
            best, least = warm, weight
    return best


def _keeps(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    held: Mapping[NodeId, Placement],
) -> Iterator[dict[NodeId, Placement]]:
    """What is held, and what free nodes have on their disks; of all of them, and of those alone
    that have layers which nobody holds."""
    cached = _placements(problem, planners, held)
    if not cached:
        return
    yield {**held, **cached}
    layers = {planner.spec.model_id: planner.spec.num_layers for planner in planners}
    gaps = {
        m: missing_spans([p.span for p in held.values() if p.model_id == m], count)
        for m, count in layers.items()
    }
    needed = {
        n: p
        for n, p in cached.items()
        if any(p.span.start < gap.end and gap.start < p.span.end for gap in gaps[p.model_id])
    }
    if needed and len(needed) < len(cached):
        yield {**held, **needed}


def _placements(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    held: Mapping[NodeId, Placement],
) -> dict[NodeId, Placement]:
    """The longest span on each free node's disk that is a part of a model and fits in memory."""
    by_model = {planner.spec.model_id: planner for planner in planners}
    found: dict[NodeId, Placement] = {}
    for cached in sorted(problem.cached, key=lambda c: (c.node_id, -len(c.span), c.model_id)):
        planner, node_id = by_model.get(cached.model_id), cached.node_id
        if planner is None or node_id in held or node_id in found:
            continue
        profile = planner.profiles.get(node_id)
        if profile is None or cached.span.end > planner.spec.num_layers:
            continue
        if kv_tokens_room(profile, planner.spec, cached.span) < planner.kv_tokens_min:
            continue
        found[node_id] = Placement(
            node_id=node_id,
            model_id=cached.model_id,
            span=cached.span,
            reason=f"has layers {cached.span} of {cached.model_id} on its disk",
        )
    return found
