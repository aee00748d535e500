"""What machines hold when a plan is repaired, and what it costs to give them other layers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler.planning.ground import Ground
from scheduler.planning.pool import PoolPlan
from scheduler.planning.table import Flags, Floats, Ints

CACHED_SHARE: Final = 0.1
"""What reading a byte from a node's own disk costs, against fetching it."""
GIB: Final = float(1 << 30)

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The network as it stands. `chains` list (node, layers) in order, with members that may be
    gone by now; `rates` are what each was planned to carry, tokens/s. `cached` are spans in a
    node's disk cache, `running` open requests by node, `stays` nodes that must not move, `resting`
    nodes that moved so lately that only a broken chain may move them again."""

    chains: tuple[tuple[tuple[str, int], ...], ...]
    rates: tuple[float, ...]
    cached: Mapping[str, Spans] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    stays: frozenset[str] = frozenset()
    resting: frozenset[str] = frozenset()


def standing_of(
    ground: Ground, plan: PoolPlan, *, cached: Mapping[str, Spans] | None = None
) -> Standing:
    """A plan that has been carried out."""
    return Standing(
        chains=tuple(
            tuple(
                (ground.machines[i].node_id, count)
                for i, count in zip(chain.members, chain.counts, strict=True)
            )
            for chain in plan.chains
        ),
        rates=tuple(chain.rate for chain in plan.chains),
        cached=cached or {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a repair weighs moves (mu). Each is a share of the plan's rate that must be gained: for a
    byte that is fetched, for a running request whose stage moves, for a node that changes its
    span. `gain_min`: what whole chains that are opened for a gain alone must carry afterwards, of
    what they carried; speeds that are known to +-5 % can never undo such a move, as
    1.12^2 > (1.05 / 0.95)^2. `rounds`: donors one after the other. `moved_max`: nodes whose span
    may change where whole chains are opened. `replicas_min`: chains that there should be."""

    rate_per_byte: float = 1e-5 / GIB
    rate_per_request: float = 2e-3
    rate_per_move: float = 7e-4
    gain_min: float = 1.12
    rounds: int = 3
    moved_max: int = 10
    replicas_min: int = 0


class Costs:
    """Layers and bytes that a span would move, by machine, for many chains at once."""

    def __init__(
        self, ground: Ground, standing: Standing, held: Mapping[int, tuple[int, int]], terms: Terms
    ) -> None:
        count, layers = len(ground.machines), ground.num_layers
        at = {m.node_id: i for i, m in enumerate(ground.machines)}
        fetched = np.ones((count + 1, layers))
        for node_id, spans in standing.cached.items():
            for start, end in spans if node_id in at else ():
                fetched[at[node_id], max(0, start) : max(0, end)] = CACHED_SHARE
        missing = np.ones((count + 1, layers))
        missing[count] = 0.0
        self._start = np.full(count + 1, -1, dtype=np.int64)
        self._end = np.full(count + 1, -1, dtype=np.int64)
        for index, (start, end) in held.items():
            missing[index, start:end] = 0.0
            self._start[index], self._end[index] = start, end
        per_layer = np.array([m.layer_bytes for m in ground.machines] + [0.0])[:, None]
        self._layers = _sums(missing)
        self._bytes = _sums(missing * per_layer)
        self._price = _sums(missing * fetched * per_layer)
        self._first = np.array([m.first_bytes for m in ground.machines] + [0.0])
        self._last = np.array([m.last_bytes for m in ground.machines] + [0.0])
        self._num_layers = layers
        self._running = np.zeros(count + 1)
        self._stays = np.zeros(count + 1, dtype=np.bool_)
        for node_id, index in at.items():
            self._running[index] = standing.running.get(node_id, 0)
            self._stays[index] = node_id in standing.stays
        self._terms = terms

    def layers(self, order: Ints, counts: Ints) -> Ints:
        """Layers that every chain has to load, (chains,)."""
        start, end = _spans(counts)
        moved = self._layers[order, end] - self._layers[order, start]
        return np.asarray(moved.sum(axis=1).round().astype(np.int64))

    def moved_bytes(self, order: Ints, counts: Ints) -> Floats:
        """Weights that every chain has to load, (chains,)."""
        start, end = _spans(counts)
        moved = self._bytes[order, end] - self._bytes[order, start]
        return np.asarray((moved + self._ends(order, start, end)).sum(axis=1))

    def changed(self, order: Ints, counts: Ints) -> Flags:
        """Stages of machines that held another span, (chains, stages)."""
        start, end = _spans(counts)
        had = self._start[order] >= 0
        is_other = (self._start[order] != start) | (self._end[order] != end)
        return np.asarray(had & is_other)

    def price(self, order: Ints, counts: Ints, rate_per_s: float) -> Floats:
        """Tokens/s that the moves of every chain must bring, (chains,); infinite where a node
        would move that must not."""
        start, end = _spans(counts)
        read = self._price[order, end] - self._price[order, start]
        read = (read + self._ends(order, start, end)).sum(axis=1)
        changed = self.changed(order, counts)
        requests = np.where(changed, self._running[order], 0.0).sum(axis=1)
        share = self._terms.rate_per_byte * read + self._terms.rate_per_request * requests
        share = share + self._terms.rate_per_move * changed.sum(axis=1)
        return np.where((changed & self._stays[order]).any(axis=1), np.inf, share * rate_per_s)

    def _ends(self, order: Ints, start: Ints, end: Ints) -> Floats:
        """Embedding and head of nodes that are new at the ends."""
        is_first = (start == 0) & (end > 0) & (self._start[order] != 0)
        is_last = (end == self._num_layers) & (end > start)
        is_last &= self._end[order] != self._num_layers
        return np.where(is_first, self._first[order], 0.0) + np.where(
            is_last, self._last[order], 0.0
        )


def _sums(figures: Floats) -> Floats:
    """Sums over the first k layers, (machines, layers + 1)."""
    return np.concatenate([np.zeros((len(figures), 1)), np.cumsum(figures, axis=1)], axis=1)


def _spans(counts: Ints) -> tuple[Ints, Ints]:
    end = np.cumsum(counts, axis=1)
    return end - counts, end
