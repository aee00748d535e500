"""The cheapest chain for one request: dynamic programming over layer boundaries.

A stage may run any contiguous part of the span its node holds. Costs are linear in the layers a
stage runs, so an optimal boundary lies where some span starts or ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from plait.types import LayerSpan, NodeId, Route, Stage
from scheduler.cost import Links
from scheduler.selection.candidates import EXACT_MAX, Candidate, Query, StagePrice, price, prune
from scheduler.selection.quick import LABELS_PER_CUT, Costs, quick_path

PER_SPAN: Final = 3

IsBlocked = Callable[[NodeId, NodeId], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A route, and the milliseconds it is expected to take from first to last token."""

    route: Route
    total_ms: float


def select_route(
    candidates: Sequence[Candidate],
    query: Query,
    links: Links,
    *,
    is_blocked: IsBlocked | None = None,
) -> Choice | None:
    """The chain with the least time to the last expected token, or None where none is feasible.

    Infeasible: too little free KV on a stage, a hop that `is_blocked`. Exact up to a dozen
    candidates; beyond, among the cheapest few holders of every distinct span; where that is still
    too many, near the cheapest. A node stands in a chain once.
    """
    fitting = [c for c in candidates if c.kv_tokens_free >= query.kv_tokens]
    fitting.sort(key=lambda c: (c.span, c.node_id))
    prices = [price(c, query) for c in fitting]
    search = _Search(fitting, prices, query, links)
    if len(fitting) <= EXACT_MAX:
        return search.run(is_blocked)
    few = search.part(prune(fitting, prices, PER_SPAN))
    if few.size <= EXACT_MAX:
        choice = few.run(is_blocked)
        if choice is not None:
            return choice
    for among, labels_per_cut in ((few, LABELS_PER_CUT), (search, None)):
        path = among.quick(is_blocked, labels_per_cut)
        if path is not None:
            return among.part(path).run(is_blocked)
    return None


Path = tuple[tuple[int, int], ...]
"""(candidate index, end boundary) of each stage."""


class _Search:
    """One query over fixed candidates."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        prices: Sequence[StagePrice],
        query: Query,
        links: Links,
    ) -> None:
        self._candidates = candidates
        self._prices = prices
        self._query = query
        self._links = links
        self._hops: dict[tuple[int, int], float] = {}
        self._num_layers = query.spec.num_layers
        self._cuts: list[int] = []
        self._starting: dict[int, list[int]] = {}

    @property
    def size(self) -> int:
        return len(self._candidates)

    def part(self, indices: Sequence[int]) -> "_Search":
        """The same question over some of the candidates, in their order."""
        chosen = sorted(indices)
        return _Search(
            [self._candidates[i] for i in chosen],
            [self._prices[i] for i in chosen],
            self._query,
            self._links,
        )

    def quick(self, is_blocked: IsBlocked | None, labels_per_cut: int | None) -> list[int] | None:
        """A near-cheapest chain's candidates, or None."""
        costs = Costs(
            start_ms=self._start_ms,
            hop_ms=self._hop_ms,
            back_ms=self._back_ms,
            is_blocked=lambda a, b: self._is_blocked(a, b, is_blocked),
        )
        return quick_path(
            self._candidates, self._prices, self._num_layers, costs, labels_per_cut=labels_per_cut
        )

    def run(self, is_blocked: IsBlocked | None) -> Choice | None:
        """The best over all first stages; the way back needs to know the first."""
        spans = [c.span for c in self._candidates]
        cuts = {span.start for span in spans} | {span.end for span in spans}
        self._cuts = sorted(cut for cut in cuts if 0 < cut <= self._num_layers)
        self._starting = {
            cut: [i for i, span in enumerate(spans) if span.start <= cut < span.end]
            for cut in self._cuts
        }
        best: tuple[float, Path] | None = None
        for first, candidate in enumerate(self._candidates):
            if candidate.span.start == 0:
                found = self._from(first, is_blocked, best[0] if best is not None else None)
                if found is not None and (best is None or found < best):
                    best = found
        if best is None:
            return None
        return Choice(route=self._route(best[1]), total_ms=best[0])

    def _from(
        self, first: int, is_blocked: IsBlocked | None, limit_ms: float | None
    ) -> tuple[float, Path] | None:
        """Labels by boundary and last candidate, boundaries in ascending order."""
        labels: dict[int, dict[int, tuple[float, Path]]] = {cut: {} for cut in self._cuts}
        self._extend(labels, first, 0, self._start_ms(first), (), first)
        for cut in self._cuts:
            if cut == self._num_layers:
                break
            for last, (total_ms, path) in labels[cut].items():
                if limit_ms is not None and total_ms >= limit_ms:
                    continue
                used = {index for index, _ in path}
                for index in self._starting[cut]:
                    if index in used or self._is_blocked(last, index, is_blocked):
                        continue
                    hop_ms = self._hop_ms(last, index)
                    self._extend(labels, index, cut, total_ms + hop_ms, path, first)
        ends = labels.get(self._num_layers)
        if not ends:
            return None
        usable = [
            label
            for last, label in ends.items()
            if last == first or not self._is_blocked(last, first, is_blocked)
        ]
        return min(usable) if usable else None

    def _extend(
        self,
        labels: dict[int, dict[int, tuple[float, Path]]],
        index: int,
        at: int,
        total_ms: float,
        path: Path,
        first: int,
    ) -> None:
        """Let candidate `index` run from `at` to each boundary inside its span."""
        end, own = self._candidates[index].span.end, self._prices[index]
        for cut in self._cuts:
            if cut <= at:
                continue
            if cut > end:
                break
            cost_ms = total_ms + own.fixed + (cut - at) * own.per_layer
            if cut == self._num_layers:
                cost_ms += own.head + self._back_ms(index, first)
            known = labels[cut].get(index)
            if known is None or cost_ms < known[0]:
                labels[cut][index] = (cost_ms, (*path, (index, cut)))

    def _start_ms(self, first: int) -> float:
        """The prompt's way to the first stage."""
        return self._links.coordinator_rtt_ms(self._candidates[first].node_id) / 2

    def _hop_ms(self, a: int, b: int) -> float:
        """Prompt and expected tokens from one stage to the next."""
        known = self._hops.get((a, b))
        if known is None:
            one, two = self._candidates[a].node_id, self._candidates[b].node_id
            query, links = self._query, self._links
            steps = max(1, query.new_tokens)
            num_bytes = query.hop_bytes * (query.prompt_tokens + steps)
            known = (1 + steps) * links.rtt_ms(one, two) / 2
            known += 1e3 * num_bytes / links.bytes_per_s(one, two)
            self._hops[a, b] = known
        return known

    def _back_ms(self, last: int, first: int) -> float:
        """Every token's way to the first stage, and the first one's to the gateway."""
        one, two = self._candidates[last].node_id, self._candidates[first].node_id
        steps = max(1, self._query.new_tokens)
        return steps * self._links.back_ms(one, two) + self._links.coordinator_rtt_ms(one) / 2

    def _is_blocked(self, a: int, b: int, is_blocked: IsBlocked | None) -> bool:
        if is_blocked is None:
            return False
        return is_blocked(self._candidates[a].node_id, self._candidates[b].node_id)

    def _route(self, path: Path) -> Route:
        stages: list[Stage] = []
        at = 0
        for index, end in path:
            candidate = self._candidates[index]
            stages.append(Stage(candidate.node_id, candidate.incarnation, LayerSpan(at, end)))
            at = end
        return tuple(stages)
