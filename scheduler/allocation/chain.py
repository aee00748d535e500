"""One chain over given nodes: its order round the ring, and how many layers each stage takes."""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from plait.types import LayerSpan, ModelSpec, NodeId, NodeProfile
from scheduler.allocation.demand import shares
from scheduler.allocation.hops import Hops
from scheduler.allocation.orders import Orders
from scheduler.allocation.problem import AllocationProblem
from scheduler.cost import (
    CONTEXT_TOKENS,
    ChainRate,
    Links,
    StageCost,
    StageFigures,
    chain_rate,
    kv_tokens_room,
    layers_max,
    stage_cost,
)
from scheduler.survival import loss, up_share

POLISHED_MAX: Final = 4
SEQUENCES_MAX: Final = 4096
Stages = tuple[tuple[NodeId, LayerSpan], ...]
LATENCY_SCALE_MS: Final = 2000.0
"""A token time of a single sequence that halves a chain's worth."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A planned chain over `target` layers of one model, stages in order."""

    stages: tuple[tuple[NodeId, LayerSpan], ...]
    rate: ChainRate

    @property
    def score(self) -> float:
        """Tokens/s, discounted by what a single user waits for each token."""
        return self.rate.tokens_per_s / (1.0 + self.rate.token_ms_single / LATENCY_SCALE_MS)

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id, _ in self.stages)


class ChainPlanner:
    """Plans chains of one model over the nodes of one problem. Pure but for its caches, and for
    `standing_score` and `num_standing`: what the model has already in the plan under way."""

    def __init__(self, problem: AllocationProblem, spec: ModelSpec) -> None:
        self.spec = spec
        self.kv_tokens_min = max(1, min(problem.kv_tokens_min, spec.context_tokens_max))
        self.sequence_tokens = min(CONTEXT_TOKENS, self.kv_tokens_min)
        self.profiles: dict[NodeId, NodeProfile] = {p.node_id: p for p in problem.nodes}
        self.costs: dict[NodeId, StageCost] = {
            p.node_id: stage_cost(p, spec) for p in problem.nodes
        }
        self._known_caps: dict[tuple[NodeId, bool, bool, int], int] = {}
        self._known_best: dict[tuple[frozenset[NodeId], LayerSpan, bool], Chain | None] = {}
        self._known_rates: dict[tuple[Stages, tuple[LayerSpan, ...]], ChainRate] = {}
        self.links = Links(problem.nodes, problem.rtt_ms, problem.bytes_per_s)
        self.orders = Orders(self.cap, self.costs, self.links)
        self.hop_bytes = problem.wire_dtype.row_bytes(spec.hidden_size)
        parts = shares([model.model_id for model in problem.models], dict(problem.demand))
        self.demand_share = parts.get(spec.model_id, 1.0)
        self.chains_min = max(1, dict(problem.replicas_min).get(spec.model_id, 1))
        self.standing_score, self.num_standing = 0.0, 0
        self.cuts = frozenset(
            cut
            for p in problem.held
            if p.model_id == spec.model_id and p.span.end <= spec.num_layers
            for cut in (p.span.start, p.span.end)
        )
        """Boundaries of what is held, whether a plan keeps it or not."""
        self.losses: dict[NodeId, float] = {n: loss(s) for n, s in problem.mean_session_s}

    @cached_property
    def hops(self) -> Hops:
        """What hops between its nodes take."""
        return Hops(self.links, self.profiles, self.hop_bytes)

    def cap(self, node_id: NodeId, *, is_first: bool, is_last: bool, kv_tokens: int = 0) -> int:
        """Layers that fit on the node in that role with at least the problem's KV."""
        key = (node_id, is_first, is_last, max(kv_tokens, self.kv_tokens_min))
        known = self._known_caps.get(key)
        if known is None:
            profile = self.profiles[node_id]
            known = layers_max(profile, self.spec, key[3], is_first=is_first, is_last=is_last)
            self._known_caps[key] = known
        return known

    def best(
        self, node_ids: Sequence[NodeId], target: LayerSpan, *, is_thorough: bool = False
    ) -> Chain | None:
        """The best chain found over all of `node_ids` on `target`; None where it cannot fit.

        `is_thorough` tries every pair of ends, and moves single layers while that helps.
        """
        if not node_ids or len(node_ids) > len(target):
            return None
        key = (frozenset(node_ids), target, is_thorough)
        if key not in self._known_best:
            chain = self._best(node_ids, target, is_thorough=is_thorough)
            self._known_best[key] = chain
        return self._known_best[key]

    def _best(
        self, node_ids: Sequence[NodeId], target: LayerSpan, *, is_thorough: bool
    ) -> Chain | None:
        chains: list[Chain] = []
        for order in self._orders(node_ids, target, is_thorough=is_thorough):
            splits = self._splits(order, target, is_thorough=is_thorough)
            chains.append(max((self._evaluate(order, s, target) for s in splits), key=_rank))
        if is_thorough:
            chains.sort(key=_rank, reverse=True)
            chains = [self._polish(chain, target) for chain in chains[:POLISHED_MAX]]
        return max(chains, key=_rank, default=None)

    def _polish(self, chain: Chain, target: LayerSpan) -> Chain:
        """Move one layer from a stage to another as long as the chain gets better."""
        order = chain.node_ids
        caps = self._caps(order, target)
        counts = [len(span) for _, span in chain.stages]
        for _ in range(2 * len(target)):
            moved = [
                self._evaluate(order, _moved(counts, i, j), target)
                for i in range(len(order))
                for j in range(len(order))
                if i != j and counts[i] > 1 and counts[j] < caps[j]
            ]
            better = max(moved, key=_rank, default=chain)
            if _rank(better) <= _rank(chain):
                break
            chain, counts = better, [len(span) for _, span in better.stages]
        return chain

    def evaluate(
        self,
        stages: Sequence[tuple[NodeId, LayerSpan]],
        *,
        held: Mapping[NodeId, LayerSpan] | None = None,
    ) -> ChainRate:
        """The rate of given stages. `held` says what nodes hold where stages run parts of it:
        KV slots are those of the whole held span."""
        if held is None:
            return self._rate(stages, [span for _, span in stages])
        wide = tuple(held[node_id] for node_id, _ in stages)
        key = tuple(stages), wide
        known = self._known_rates.get(key)
        if known is None:
            known = self._known_rates[key] = self._rate(stages, wide)
        return known

    def _rate(
        self, stages: Sequence[tuple[NodeId, LayerSpan]], wide: Sequence[LayerSpan]
    ) -> ChainRate:
        order = [node_id for node_id, _ in stages]
        figures = [
            StageFigures(
                self._base_ms(node_id, len(span), span),
                self.costs[node_id].layer_ms_per_extra * len(span),
                self._kv_tokens(node_id, held),
            )
            for (node_id, span), held in zip(stages, wide, strict=True)
        ]
        links = self.links
        pairs = list(itertools.pairwise(order))
        hops_ms = sum(links.hop_ms(a, b, self.hop_bytes) for a, b in pairs)
        if len(order) > 1:
            hops_ms += links.back_ms(order[-1], order[0])
        slot_ms = max((1e3 * self.hop_bytes / links.bytes_per_s(a, b) for a, b in pairs), default=0)
        rate = chain_rate(
            figures, hops_ms=hops_ms, slot_ms=slot_ms, sequence_tokens=self.sequence_tokens
        )
        if not self.losses:
            return rate
        share = up_share(sum(self.losses.get(n, 0.0) for n in order))
        return replace(rate, tokens_per_s=rate.tokens_per_s * share)

    def _evaluate(self, order: Sequence[NodeId], counts: Sequence[int], target: LayerSpan) -> Chain:
        stages: list[tuple[NodeId, LayerSpan]] = []
        at = target.start
        for node_id, count in zip(order, counts, strict=True):
            stages.append((node_id, LayerSpan(at, at + count)))
            at += count
        return Chain(tuple(stages), self.evaluate(stages))

    def _kv_tokens(self, node_id: NodeId, span: LayerSpan) -> int:
        return max(0, kv_tokens_room(self.profiles[node_id], self.spec, span))

    def _base_ms(self, node_id: NodeId, num_layers: int, span: LayerSpan) -> float:
        return self.costs[node_id].decode_ms(
            num_layers, 1, is_first=span.start == 0, is_last=span.end == self.spec.num_layers
        )

    # --- order ------------------------------------------------------------------------------------

    def _orders(
        self, node_ids: Sequence[NodeId], target: LayerSpan, *, is_thorough: bool
    ) -> list[list[NodeId]]:
        """Rotations of the shortest ring: a ring costs the same wherever it begins, so roles
        decide where (room for embedding and head, the head on a fast node). Other ends only where
        none of these fits, or where there is time."""
        ring = self._ring(sorted(node_ids))
        rotations = [ring[i:] + ring[:i] for i in range(len(ring))]
        if len(ring) > 2:
            backward = ring[::-1]
            rotations += [backward[i:] + backward[:i] for i in range(len(ring))]
        scored = self._scored(rotations, target)
        if not scored or is_thorough:
            others = _all_ends(ring)
            scored += [s for s in self._scored(others, target) if s[2] not in rotations]
            scored.sort()
        if is_thorough or len(scored) <= 2:
            return [order for _, _, order in scored]
        roomiest = min(scored, key=lambda s: (s[1], s[0], s[2]))
        return [scored[0][2], roomiest[2]] if roomiest is not scored[0] else [roomiest[2]]

    def _scored(
        self, orders: Sequence[list[NodeId]], target: LayerSpan
    ) -> list[tuple[float, int, list[NodeId]]]:
        """(head time, -room, order) of those that fit, the quickest head first; one that comes and
        goes counts as slower, and so does the other end. `orders` are of the same nodes."""
        if not orders:
            return []
        is_first, is_last = target.start == 0, target.end == self.spec.num_layers
        between = {n: self.cap(n, is_first=False, is_last=False) for n in orders[0]}
        full, total = {n for n, room in between.items() if room < 1}, sum(between.values())
        scored = []
        for order in orders:
            first, last = order[0], order[-1]
            if first == last:
                room = least = self.cap(first, is_first=is_first, is_last=is_last)
            else:
                rooms = (
                    self.cap(first, is_first=is_first, is_last=False),
                    self.cap(last, is_first=False, is_last=is_last),
                )
                room = total - between[first] - between[last] + sum(rooms)
                least = 0 if full - {first, last} else min(rooms)
            if least >= 1 and room >= len(target):
                ends = self.losses.get(first, 0.0) + self.losses.get(last, 0.0)
                scored.append((self.costs[last].head_ms * (1.0 + ends), -room, order))
        return sorted(scored)

    def _ring(self, node_ids: list[NodeId]) -> list[NodeId]:
        """Nearest neighbour, then 2-opt (Croes, 1958) on the round trips."""
        ring, rest = [node_ids[0]], node_ids[1:]
        while rest:
            nearest = min(rest, key=lambda n: (self.links.rtt_ms(ring[-1], n), n))
            rest.remove(nearest)
            ring.append(nearest)
        is_better = len(ring) > 3
        while is_better:
            is_better = False
            for i in range(len(ring) - 1):
                for j in range(i + 2, len(ring)):
                    if self._gain(ring, i, j) > 1e-6:
                        ring[i + 1 : j + 1] = ring[i + 1 : j + 1][::-1]
                        is_better = True
        return ring

    def _gain(self, ring: list[NodeId], i: int, j: int) -> float:
        a, b, c, d = ring[i], ring[i + 1], ring[j], ring[(j + 1) % len(ring)]
        trip = self._trip_ms
        return trip(a, b) + trip(c, d) - trip(a, c) - trip(b, d)

    def _trip_ms(self, a: NodeId, b: NodeId) -> float:
        """The same both ways, though they may be measured differently: turning a part of the ring
        round must not make it longer unseen, or 2-opt never ends."""
        return (self.links.rtt_ms(a, b) + self.links.rtt_ms(b, a)) / 2

    # --- split ------------------------------------------------------------------------------------

    def _caps(self, order: Sequence[NodeId], target: LayerSpan, kv_tokens: int = 0) -> list[int]:
        last = len(order) - 1
        return [
            self.cap(
                node_id,
                is_first=i == 0 and target.start == 0,
                is_last=i == last and target.end == self.spec.num_layers,
                kv_tokens=kv_tokens,
            )
            for i, node_id in enumerate(order)
        ]

    def _splits(
        self, order: Sequence[NodeId], target: LayerSpan, *, is_thorough: bool
    ) -> list[tuple[int, ...]]:
        """Splits worth a look: for few, some and as many sequences as the KV can carry, layers
        dealt to the stage that ends up quickest, and to the fastest per layer first. `is_thorough`
        finds how many the KV can carry to the last one, for there the split is often the only one,
        and tries more between."""
        most = 1
        while most < SEQUENCES_MAX and self._has_room(order, target, 2 * most):
            most *= 2
        above = 2 * most
        while is_thorough and above - most > 1:
            middle = (most + above) // 2
            if self._has_room(order, target, middle):
                most = middle
            else:
                above = middle
        splits: dict[tuple[int, ...], None] = {}
        tried = [1, max(1, int(most**0.5)), most]
        if is_thorough:
            tried += [max(1, most * eighth // 8) for eighth in range(1, 8)]
        for num_sequences in dict.fromkeys(tried):
            caps = self._caps(order, target, num_sequences * self.sequence_tokens)
            if min(caps) < 1 or sum(caps) < len(target):
                continue
            splits[self._balanced(order, caps, target)] = None
            splits[self._fastest_first(order, caps, target)] = None
        return list(splits)

    def _has_room(self, order: Sequence[NodeId], target: LayerSpan, num_sequences: int) -> bool:
        caps = self._caps(order, target, num_sequences * self.sequence_tokens)
        return min(caps) >= 1 and sum(caps) >= len(target)

    def _balanced(
        self, order: Sequence[NodeId], caps: Sequence[int], target: LayerSpan
    ) -> tuple[int, ...]:
        """Least bottleneck: each layer goes to the stage that is quickest with it."""
        counts = [1] * len(order)
        last = len(order) - 1
        fixed = [
            self.costs[n].overhead_ms
            + (self.costs[n].embed_ms if i == 0 and target.start == 0 else 0.0)
            + (self.costs[n].head_ms if i == last and target.end == self.spec.num_layers else 0.0)
            for i, n in enumerate(order)
        ]
        layer = [self.costs[n].layer_ms for n in order]
        heap = [(fixed[i] + 2 * layer[i], i) for i in range(len(order)) if caps[i] > 1]
        heapq.heapify(heap)
        for _ in range(len(target) - len(order)):
            _, i = heapq.heappop(heap)
            counts[i] += 1
            if counts[i] < caps[i]:
                heapq.heappush(heap, (fixed[i] + (counts[i] + 1) * layer[i], i))
        return tuple(counts)

    def _fastest_first(
        self, order: Sequence[NodeId], caps: Sequence[int], target: LayerSpan
    ) -> tuple[int, ...]:
        """Least sum of stage times: what a single sequence waits for."""
        counts = [1] * len(order)
        left = len(target) - len(order)
        for i in sorted(range(len(order)), key=lambda i: (self.costs[order[i]].layer_ms, i)):
            taken = min(left, caps[i] - 1)
            counts[i] += taken
            left -= taken
        return tuple(counts)


def _all_ends(ring: Sequence[NodeId]) -> list[list[NodeId]]:
    """The ring's order with any node moved to the front and any other to the end."""
    return [
        [first, *(n for n in ring if n not in (first, last)), last]
        for first in ring
        for last in ring
        if first != last
    ]


def _moved(counts: Sequence[int], i: int, j: int) -> list[int]:
    moved = list(counts)
    moved[i] -= 1
    moved[j] += 1
    return moved


def _rank(chain: Chain) -> tuple[float, float]:
    """Score to three digits, then the lower bottleneck."""
    score = chain.score
    return (float(f"{score:.3g}"), -chain.rate.bottleneck_ms)
