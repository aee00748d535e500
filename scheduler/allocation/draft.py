"""A plan under way: what is kept, which gaps are filled, which chains are added, who stands by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plait.errors import UnavailableError
from plait.types import LayerSpan, ModelId, NodeId, missing_spans
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.greedy import greedy_chains, grow
from scheduler.allocation.problem import Placement
from scheduler.allocation.shortage import shortage_error
from scheduler.allocation.spare import replicate
from scheduler.allocation.stitch import stitch
from scheduler.survival import up_share

ChainChooser = Callable[
    [Sequence[ChainPlanner], Sequence[NodeId], frozenset[ModelId]],
    list[tuple[ChainPlanner, Chain]],
]
"""Picks disjoint chains over whole models from free nodes. Models of the set must get one."""


@dataclass(slots=True)
class Draft:
    """Spans by model, with each node's reason."""

    planners: tuple[ChainPlanner, ...]
    spans: dict[ModelId, dict[NodeId, LayerSpan]]
    reasons: dict[NodeId, str] = field(default_factory=dict)
    chains: list[Chain] = field(default_factory=list)
    rate: float = 0.0
    score: float = 0.0

    def free(self) -> list[NodeId]:
        """Nodes without a span."""
        taken = {n for spans in self.spans.values() for n in spans}
        return sorted(n for n in self.planners[0].profiles if n not in taken)

    def worth(self) -> tuple[int, float]:
        """Models served, then score."""
        return sum(bool(spans) for spans in self.spans.values()), round(self.score, 6)

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
    """Models that must be served first, one chain each; then chains for all in turn."""
    chosen: list[tuple[ChainPlanner, Chain]] = []
    left = list(free)
    for planner in sorted(planners, key=lambda p: p.spec.model_id not in must):
        is_rich = len(planners) == 1
        chains = greedy_chains(planner, left, planner.spec.whole)
        for chain in chains if is_rich else chains[:1]:
            chosen.append((planner, chain))
            left = [n for n in left if n not in chain.node_ids]
    for planner in planners if len(planners) > 1 else ():
        for chain in greedy_chains(planner, left, planner.spec.whole):
            chosen.append((planner, chain))
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
    uncovered = frozenset(m for m, spans in draft.spans.items() if not spans)
    for planner, chain in choose(planners, draft.free(), uncovered):
        _add_chain(draft, planner, chain)
    errors += [
        shortage_error(p, draft.free(), {})
        for p in planners
        if not draft.spans[p.spec.model_id] and p.spec.model_id in uncovered
    ]
    if all(not spans for spans in draft.spans.values()) or (errors and keep):
        raise errors[0]
    _spread_spares(draft)
    _rate(draft)
    return draft


def _fill_gaps(draft: Draft, planner: ChainPlanner) -> UnavailableError | None:
    """Complete a model that kept nodes cover in part."""
    spans = draft.spans[planner.spec.model_id]
    for gap in missing_spans(list(spans.values()), planner.spec.num_layers) if spans else []:
        chains = grow(planner, draft.free(), gap)
        if not chains:
            return shortage_error(planner, draft.free(), spans)
        best = max(chains, key=lambda c: (c.score, -len(c.stages), c.node_ids))
        for node_id, span in best.stages:
            spans[node_id] = span
            draft.reasons[node_id] = f"fills the gap at layers {gap} of {planner.spec.model_id}"
    return None


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
    for planner in draft.planners:
        spans = draft.spans[planner.spec.model_id]
        others = {n: span for n, span in spans.items() if n not in in_chain}
        draft.chains += [Chain(stages, rate) for stages, rate in stitch(planner, others)]
    draft.rate = sum(chain.rate.tokens_per_s for chain in draft.chains)
    draft.score = sum(chain.score for chain in draft.chains)
