"""A plan under way: what is kept, which gaps are filled, which chains are added, who stands by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plait.errors import UnavailableError
from plait.types import LayerSpan, ModelId, NodeId, missing_spans
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.demand import fair_score
from scheduler.allocation.greedy import first_chain, greedy_chains, grow, grow_smallest
from scheduler.allocation.problem import Placement
from scheduler.allocation.relief import relieved
from scheduler.allocation.shortage import shortage_error
from scheduler.allocation.spare import replicate
from scheduler.allocation.stitch import stitch
from scheduler.survival import up_share

ChainChooser = Callable[
    [Sequence[ChainPlanner], Sequence[NodeId], frozenset[ModelId]],
    list[tuple[ChainPlanner, Chain]],
]
"""Picks disjoint chains over whole models from free nodes. Models of the set must get one."""

ChainPick = Callable[[ChainPlanner, Sequence[NodeId], LayerSpan], Chain | None]
"""Picks a chain over some layers from free nodes; None where none fits."""


@dataclass(slots=True)
class Draft:
    """Spans by model, with each node's reason."""

    planners: tuple[ChainPlanner, ...]
    spans: dict[ModelId, dict[NodeId, LayerSpan]]
    reasons: dict[NodeId, str] = field(default_factory=dict)
    chains: list[Chain] = field(default_factory=list)
    rate: float = 0.0
    score: float = 0.0
    num_called_for: int = 0

    def free(self) -> list[NodeId]:
        """Nodes without a span."""
        taken = {n for spans in self.spans.values() for n in spans}
        return sorted(n for n in self.planners[0].profiles if n not in taken)

    def worth(self) -> tuple[int, int, float]:
        """Models served, chains that were called for, then score."""
        num_served = sum(bool(spans) for spans in self.spans.values())
        return num_served, self.num_called_for, round(self.score, 6)

    def placements(self) -> tuple[Placement, ...]:
        """In the order of models, spans and nodes."""
        return tuple(
            Placement(
                node_id=node_id,
                model_id=model_id,
                span=span,
                reason=self.reasons.get(node_id, ""),
            )
            for model_id, spans in self.spans.items()
            for node_id, span in sorted(spans.items(), key=lambda item: (item[1], item[0]))
        )


def greedy_chooser(
    planners: Sequence[ChainPlanner], free: Sequence[NodeId], must: frozenset[ModelId]
) -> list[tuple[ChainPlanner, Chain]]:
    """Models that must be served first, then the chains that each is to have; then always the
    model that has least of what it is asked for."""
    chosen: list[tuple[ChainPlanner, Chain]] = []
    left = list(free)
    if len(planners) == 1:
        return [(planners[0], c) for c in greedy_chains(planners[0], left, planners[0].spec.whole)]
    scores = [planner.standing_score for planner in planners]
    counts = [planner.num_standing for planner in planners]
    is_open = [True] * len(planners)
    while any(is_open):
        at = min(
            (i for i in range(len(planners)) if is_open[i]),
            key=lambda i: (
                counts[i] > 0 or planners[i].spec.model_id not in must,
                counts[i] >= planners[i].chains_min,
                scores[i] / planners[i].demand_share,
                i,
            ),
        )
        chain = first_chain(planners[at], left, planners[at].spec.whole)
        if chain is None or (chain.score <= 0.0 and counts[at] > 0):
            is_open[at] = False
            continue
        chosen.append((planners[at], chain))
        scores[at] += chain.score
        counts[at] += 1
        left = [n for n in left if n not in chain.node_ids]
    return chosen


def draft_plan(
    planners: tuple[ChainPlanner, ...],
    keep: Mapping[NodeId, Placement],
    choose: ChainChooser,
) -> Draft:
    """Keep what must stay, fill its gaps, add chains, replicate with the rest.

    Raises UnavailableError(reason="not_enough_memory") where no model can be covered.
    """
    draft = Draft(planners, {p.spec.model_id: {} for p in planners})
    for node_id in sorted(keep):
        placement = keep[node_id]
        draft.spans[placement.model_id][node_id] = placement.span
        draft.reasons[node_id] = placement.reason or "keeps what it has loaded"
    errors = [e for p in planners if (e := _fill_gaps(draft, p)) is not None]
    _note_standing(draft)
    uncovered = frozenset(m for m, spans in draft.spans.items() if not spans)
    for planner, chain in choose(planners, draft.free(), uncovered):
        _add_chain(draft, planner, chain)
    if all(not spans for spans in draft.spans.values()):
        errors += [shortage_error(p, draft.free(), {}) for p in planners]
    if errors:
        raise errors[0]
    _spread_spares(draft)
    _rate(draft)
    return draft


def _note_standing(draft: Draft) -> None:
    """What kept nodes serve already counts when the others are shared out between models."""
    for planner in draft.planners if len(draft.planners) > 1 else ():
        chains = [Chain(*c) for c in stitch(planner, draft.spans[planner.spec.model_id])]
        planner.standing_score = sum(chain.score for chain in chains)
        planner.num_standing = len(chains)


def _fill_gaps(draft: Draft, planner: ChainPlanner) -> UnavailableError | None:
    """Complete a model that kept nodes cover in part. Where the best nodes for the first gaps leave
    too little for another, the wide gaps come first, or each gets as little memory as will do."""
    spans = draft.spans[planner.spec.model_id]
    gaps = missing_spans(list(spans.values()), planner.spec.num_layers) if spans else []
    by_width = sorted(gaps, key=lambda gap: (-len(gap), gap))
    filled = _filled(draft, planner, gaps, _best)
    for order, pick in ((by_width, _best), (gaps, _smallest), (by_width, _smallest)):
        if filled is None and len(gaps) > 1:
            filled = _filled(draft, planner, order, pick)
    if filled is None:
        return shortage_error(planner, draft.free(), spans)
    for gap, chain in filled:
        for node_id, span in chain.stages:
            spans[node_id] = span
            draft.reasons[node_id] = f"fills the gap at layers {gap} of {planner.spec.model_id}"
    return None


def _filled(
    draft: Draft, planner: ChainPlanner, gaps: Sequence[LayerSpan], pick: ChainPick
) -> list[tuple[LayerSpan, Chain]] | None:
    """A chain for each gap in turn, of nodes that no earlier one took."""
    free, filled = draft.free(), list[tuple[LayerSpan, Chain]]()
    for gap in gaps:
        chain = pick(planner, free, gap)
        if chain is None:
            return None
        filled.append((gap, chain))
        free = [n for n in free if n not in chain.node_ids]
    return filled


def _best(planner: ChainPlanner, free: Sequence[NodeId], gap: LayerSpan) -> Chain | None:
    chains = grow(planner, free, gap)
    return max(chains, key=lambda c: (c.score, -len(c.stages), c.node_ids), default=None)


def _smallest(planner: ChainPlanner, free: Sequence[NodeId], gap: LayerSpan) -> Chain | None:
    """Of the nodes with the least memory in all: what is left may have to fill a wider gap."""
    alone = (planner.best([n], gap) for n in free)
    several = [*grow(planner, free, gap), grow_smallest(planner, free, gap)]
    chains = [chain for chain in (*alone, *several) if chain is not None]

    def memory(chain: Chain) -> int:
        return sum(planner.profiles[n].memory_bytes for n in chain.node_ids)

    return min(chains, key=lambda c: (memory(c), -c.score, c.node_ids), default=None)


def _add_chain(draft: Draft, planner: ChainPlanner, chain: Chain) -> None:
    model_id = planner.spec.model_id
    draft.chains.append(chain)
    losses = sum(planner.losses.get(node_id, 0.0) for node_id in chain.node_ids)
    stays = f"; its nodes come and go, it counts {100 * up_share(losses):.1f} %" if losses else ""
    for index, (node_id, span) in enumerate(chain.stages):
        draft.spans[model_id][node_id] = span
        role = ""
        if span.start == 0:
            role += ", with the embedding"
        if span.end == planner.spec.num_layers:
            role += ", with the LM head"
        draft.reasons[node_id] = (
            f"stage {index + 1} of {len(chain.stages)} in a chain of {model_id}{role}: "
            f"the split that serves most within every node's memory{stays}"
        )


def _spread_spares(draft: Draft) -> None:
    for planner in draft.planners:
        spans = draft.spans[planner.spec.model_id]
        if not spans:
            continue
        for node_id, span in replicate(planner, spans, draft.free()).items():
            draft.spans[planner.spec.model_id][node_id] = span
            draft.reasons[node_id] = (
                f"second copy of layers {span} of {planner.spec.model_id}: takes load, and "
                "stands in when a node leaves"
            )


def _rate(draft: Draft) -> None:
    """Tokens/s and score: the chosen chains, and those that the other nodes complete."""
    in_chain = {n for chain in draft.chains for n in chain.node_ids}
    scores: dict[ModelId, float] = {}
    for planner in draft.planners:
        spans = draft.spans[planner.spec.model_id]
        own = [chain for chain in draft.chains if chain.node_ids[0] in spans]
        others = {n: span for n, span in spans.items() if n not in in_chain}
        more = [Chain(stages, rate) for stages, rate in stitch(planner, others)]
        unused = sorted(others.keys() - {n for chain in more for n in chain.node_ids})
        for index, chain in enumerate(more if unused else ()):
            more[index] = relieved(planner, chain, others, unused)
            if more[index] is not chain:
                taken = set(more[index].node_ids)
                unused = [n for n in unused if n not in taken]
        draft.num_called_for += min(planner.chains_min, len(own) + len(more))
        draft.chains += more
        scores[planner.spec.model_id] = sum(chain.score for chain in own + more)
    draft.rate = sum(chain.rate.tokens_per_s for chain in draft.chains)
    parts = {p.spec.model_id: p.demand_share for p in draft.planners}
    draft.score = fair_score(scores, parts)
