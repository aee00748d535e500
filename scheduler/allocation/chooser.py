"""Chains chosen by the pattern ILP; the greedy ones are among its columns."""

from collections.abc import Sequence

from plait.types import ModelId, NodeId
from scheduler.allocation.chain import Chain, ChainPlanner
from scheduler.allocation.classes import NodeClass, classify
from scheduler.allocation.columns import Column, counts_of, make_columns
from scheduler.allocation.demand import fair_score
from scheduler.allocation.draft import greedy_chooser
from scheduler.allocation.patterns import SolvePatterns

Chains = list[tuple[ChainPlanner, Chain]]


class IlpChooser:
    """A ChainChooser; afterwards `solver`, `status` and `warnings` say how it went."""

    def __init__(self, solve: SolvePatterns, time_limit_s: float) -> None:
        self._solve = solve
        self._time_limit_s = time_limit_s
        self.solver = "greedy"
        self.status = "feasible"
        self.warnings: tuple[str, ...] = ()
        self._greedy: dict[tuple[object, ...], Chains] = {}

    def __call__(
        self, planners: Sequence[ChainPlanner], free: Sequence[NodeId], must: frozenset[ModelId]
    ) -> Chains:
        """The ILP's chains, or the greedy ones where the solver does not do its work."""
        greedy = self.greedy(planners, free, must)
        if not free:
            return greedy
        classes = classify(planners, free)
        seeds = [Column(p, counts_of(classes, c.node_ids), c) for p, c in greedy if c.score > 0.0]
        columns = make_columns(planners, classes, seeds)
        if not columns:
            return greedy
        try:
            solution = self._solve(columns, classes, must, self._time_limit_s)
            chains = _concrete(columns, classes, solution.uses)
        except Exception as error:  # a stranger's code: whatever it does, greedy chains are there
            self.warnings = (f"planned without the solver: {error}",)
            return greedy
        if _worth(planners, chains, must) < _worth(planners, greedy, must):
            return greedy  # within the solver's gap, or it did not work at all
        self.solver, self.status = solution.solver, solution.status
        return chains

    def greedy(
        self, planners: Sequence[ChainPlanner], free: Sequence[NodeId], must: frozenset[ModelId]
    ) -> Chains:
        """The greedy chains, worked out once per question. Also a ChainChooser."""
        key = (tuple(free), must, *((p.standing_score, p.num_standing) for p in planners))
        if key not in self._greedy:
            self._greedy[key] = greedy_chooser(planners, free, must)
        return self._greedy[key]


def _worth(
    planners: Sequence[ChainPlanner], chains: Chains, must: frozenset[ModelId]
) -> tuple[int, int, float]:
    """Models served that must be, chains that were called for, then what all have of them."""
    served = {planner.spec.model_id for planner, _ in chains}
    scores = {p.spec.model_id: p.standing_score for p in planners}
    counts = {p.spec.model_id: p.num_standing for p in planners}
    for planner, chain in chains:
        scores[planner.spec.model_id] += chain.score
        counts[planner.spec.model_id] += 1
    called_for = sum(min(p.chains_min, counts[p.spec.model_id]) for p in planners)
    parts = {p.spec.model_id: p.demand_share for p in planners}
    return len(served & must), called_for, round(fair_score(scores, parts), 6)


def _concrete(
    columns: Sequence[Column], classes: Sequence[NodeClass], uses: Sequence[int]
) -> Chains:
    """Nodes for the chosen patterns, the best ones first; near ones inside a class together.

    Raises ValueError where the solution asks for more nodes than there are: a solver that lies.
    """
    left = [list(c.members) for c in classes]
    chosen = [
        column
        for column, use in sorted(
            zip(columns, uses, strict=True), key=lambda pair: -pair[0].chain.score
        )
        for _ in range(use)
    ]
    chains: Chains = []
    for column in chosen:
        node_ids: list[NodeId] = []
        for pool, count in zip(left, column.counts, strict=True):
            if count > len(pool):
                raise ValueError("the solver used nodes that do not exist")
            for _ in range(count):
                nearest = min(pool, key=lambda n: (_distance(column.planner, node_ids, n), n))
                pool.remove(nearest)
                node_ids.append(nearest)
        is_small = len(node_ids) <= 6
        chain = column.planner.best(node_ids, column.planner.spec.whole, is_thorough=is_small)
        if chain is not None:
            chains.append((column.planner, chain))
    return chains


def _distance(planner: ChainPlanner, chosen: Sequence[NodeId], node_id: NodeId) -> float:
    return round(sum(planner.links.rtt_ms(other, node_id) for other in chosen), 3)
