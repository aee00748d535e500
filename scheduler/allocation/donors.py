"""Plans that move few nodes: one node, or one replica, gives up its span and is planned anew.

The nodes that may move are released one replica at a time, not all at once: what the others hold
stays. Of the plans that restore cover, the one that reads least is taken, unless another is worth
clearly more.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from plait.errors import UnavailableError
from plait.types import LayerSpan, NodeId, missing_spans
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.draft import ChainChooser, Draft, draft_plan
from scheduler.allocation.moves import CachedLayers, moved
from scheduler.allocation.problem import AllocationProblem, Placement
from scheduler.allocation.stitch import stitch
from scheduler.allocation.stretch import stretch

GAIN_MIN: Final = 1.1
"""A plan that moves nodes must be worth this much more than one that moves fewer."""
WHOLE_GAIN_MIN: Final = 1.12
"""A replica that is whole must carry so much more afterwards: with speeds known to 5 %, no such
move can look undone."""
NODES_MAX: Final = 16
REPLICAS_MAX: Final = 8
"""Single nodes, and replicas, that are tried as donors."""


def donor_draft(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    held: Mapping[NodeId, Placement],
    choose: ChainChooser,
) -> Draft | None:
    """The best plan with one donor; None where none is possible."""
    found: list[tuple[float, Draft]] = []
    fixed = frozenset(problem.fixed)
    tried = [
        {n: p for n, p in held.items() if n not in r} for r in _releases(planners, held, fixed)
    ]
    stretched = _stretched(planners, held, fixed, CachedLayers(problem))
    if stretched is not None:
        tried.insert(0, stretched)
    for keep in tried:
        try:
            draft = draft_plan(planners, keep, choose)
        except UnavailableError:
            continue
        found.append((moved(problem, draft.placements()).weight, draft))
    best: Draft | None = None
    for _, draft in sorted(found, key=lambda item: item[0]):
        if best is None or is_clearly_better(draft, best):
            best = draft
    return best


def gain_draft(
    problem: AllocationProblem,
    planners: tuple[ChainPlanner, ...],
    held: Mapping[NodeId, Placement],
    kept: Draft,
    choose: ChainChooser,
) -> Draft | None:
    """The plan that gains most by opening one whole replica; None where none gains enough, by
    what that replica carries: among many, one that has become slow is little of the total."""
    best: Draft | None = None
    if len(planners) > 1:
        return None  # what one model gains says nothing of the others' shares
    (planner,) = planners
    spans = {n: p.span for n, p in held.items()}
    fixed = frozenset(problem.fixed)
    chains = sorted(stitch(planner, spans), key=lambda c: (c[1].tokens_per_s, c[0]))
    for stages, rate in chains[:REPLICAS_MAX]:
        released = frozenset(n for n, _ in stages) - fixed
        if not released:
            continue
        try:
            draft = draft_plan(
                planners, {n: p for n, p in held.items() if n not in released}, choose
            )
        except UnavailableError:
            continue
        needed = (WHOLE_GAIN_MIN - 1.0) * Chain(stages, rate).score
        if draft.worth()[:2] < kept.worth()[:2] or draft.score < kept.score + needed:
            continue
        if (best is None or draft.score > best.score) and not lowers(draft, kept):
            best = draft
    return best


def lowers(draft: Draft, kept: Draft) -> bool:
    """Whether one model's tokens/s are less than before, those planned or those that the spans
    carry once they are stitched again, as the next plan does it: a shorter wait is no gain then,
    nor are chains that nobody finds again."""
    if len(draft.planners) > 1 or draft.worth()[:2] != kept.worth()[:2]:
        return False
    return draft.rate < kept.rate or _standing_rate(draft) < _standing_rate(kept)


def _standing_rate(draft: Draft) -> float:
    (planner,) = draft.planners
    spans = draft.spans[planner.spec.model_id]
    return sum(rate.tokens_per_s for _, rate in stitch(planner, spans))


def _stretched(
    planners: tuple[ChainPlanner, ...],
    held: Mapping[NodeId, Placement],
    fixed: frozenset[NodeId],
    cached: CachedLayers,
) -> dict[NodeId, Placement] | None:
    """What is held, with the fewest changes that close the gaps; None where nothing is missing,
    or where that takes more."""
    keep = dict(held)
    idle = frozenset(planners[0].profiles) - held.keys()
    for planner in planners:
        model_id = planner.spec.model_id
        spans = {n: p.span for n, p in held.items() if p.model_id == model_id}
        changed = stretch(planner, spans, idle, fixed, cached) if spans else {}
        if changed is None:
            return None
        idle -= changed.keys()
        for node_id, span in changed.items():
            why = f"reaches over layers of {model_id} that nobody held any more"
            keep[node_id] = Placement(node_id=node_id, model_id=model_id, span=span, reason=why)
    return keep if keep != dict(held) else None


def is_clearly_better(draft: Draft, other: Draft) -> bool:
    """It serves more models, or chains that are called for, or is worth clearly more."""
    return is_better_by(draft, other, GAIN_MIN)


def is_better_by(draft: Draft, other: Draft, share: float) -> bool:
    """The same with another share of the score."""
    if draft.worth()[:2] != other.worth()[:2]:
        return draft.worth()[:2] > other.worth()[:2]
    return draft.score > other.score * share


def _releases(
    planners: tuple[ChainPlanner, ...],
    held: Mapping[NodeId, Placement],
    fixed: frozenset[NodeId],
) -> Iterator[frozenset[NodeId]]:
    """Who may give up its span: nodes beside missing layers first, then the weakest replicas."""
    for planner in planners:
        spans = {n: p.span for n, p in held.items() if p.model_id == planner.spec.model_id}
        gaps = missing_spans(list(spans.values()), planner.spec.num_layers) if spans else []
        if gaps:
            nearest = sorted(
                (n for n in spans if n not in fixed),
                key=lambda n: (min(_distance(spans[n], gap) for gap in gaps), len(spans[n]), n),
            )
            yield from (frozenset((n,)) for n in nearest[:NODES_MAX])
        chains = sorted(stitch(planner, spans), key=lambda c: (c[1].tokens_per_s, c[0]))
        replicas = [frozenset(n for n, _ in stages) for stages, _ in chains]
        yield from [r for r in replicas if not r & fixed][:REPLICAS_MAX]


def _distance(span: LayerSpan, gap: LayerSpan) -> int:
    """Layers between the two; 0 where they touch."""
    return max(0, gap.start - span.end, span.start - gap.end)
