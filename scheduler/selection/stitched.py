"""The exact chain where spans overlap: a stage may run any part of what its node holds.

Costs are linear in the layers a stage runs, so of two neighbours the faster one runs all it can:
one hands over where its span ends, or where the other's begins. Best first (A*): what a chain must
still cost at least is known beforehand (`potential.py`), so little but the answer is looked at.
"""

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple, Optional

from plait.types import LayerSpan, NodeId, Route, Stage
from scheduler.cost import PREFILL_CHUNK_TOKENS
from scheduler.selection.board import Board
from scheduler.selection.candidates import Load, Query, step_layer_ms
from scheduler.selection.groups import INFINITE
from scheduler.selection.potential import Figures, Ground, Mix, Potential, blend
from scheduler.selection.rows import KV_CAP_TOKENS

SLACKS: Final = (1.02, 1.2, INFINITE)
"""How far above the least first guess chains are looked at, tried in turn."""


class Scales(NamedTuple):
    """A request's lengths per trip round the ring. Each hop carries `carried` tokens per trip;
    `chunks` are steps and chunks of the prompt; `need` KV slots are needed on every stage."""

    share: float
    prompt: float
    new: float
    carried: float
    chunks: float
    need: int


class Label(NamedTuple):
    """A chain so far. `base_ms` is its cost as if its last node had run from layer 0 on: what it
    costs at a boundary is that and the boundary times the node's ms per layer."""

    base_ms: float
    node: int
    start: int
    first: int
    before: Optional["Label"]


Waiting = tuple[float, int, Label, int | None]
"""What a chain costs at least, a number that breaks ties, the chain, and where it hands over: None
where that is still open, the number of layers where it is complete."""


class Stitcher:
    """The search over one board; keeps what requests share."""

    def __init__(self, board: Board, num_layers: int) -> None:
        self._board = board
        self._num_layers = num_layers
        self._ground = Ground(board, num_layers)
        size = len(board.candidates)
        self._figures = [self._now(i) for i in range(size)]
        self._room = [min(KV_CAP_TOKENS, load.kv_tokens_free) for load in board.loads]
        self._floors = list(self._figures)
        self._potential: Potential | None = None
        self._stale: set[int] = set()

    def update(self, index: int) -> None:
        """News of the board's row `index`."""
        self._stale.add(index)

    def best(self, query: Query, excluded: Collection[NodeId] = ()) -> tuple[Route, float] | None:
        """The cheapest chain with room on every stage and its ms, or None."""
        if self._stale:
            self._refresh()
        if self._potential is None:
            self._potential = Potential(self._ground, self._floors)
        steps = max(1, query.new_tokens)
        share = 1.0 / (1 + steps)
        banned = {i for n in excluded if (i := self._board.index(n)) is not None}
        lengths = (share, query.prompt_tokens * share, steps * share)
        scales = Scales(
            *lengths,
            carried=lengths[1] + lengths[2],
            chunks=share + lengths[1] / PREFILL_CHUNK_TOKENS + lengths[2],
            need=min(KV_CAP_TOKENS, query.kv_tokens),
        )
        mix = blend(scales.prompt, scales.new)
        firsts = self._firsts(self._potential, scales, mix, banned)
        for slack in SLACKS if firsts else ():
            limit = slack * firsts[0][0]
            heap = [waiting for waiting in firsts if waiting[0] < limit]
            found = self._search(self._potential, scales, mix, banned, heap, limit)
            if found is not None:
                total, label = found
                return self._route(label), total * (1 + steps)
        return None

    def _firsts(
        self, potential: Potential, scales: Scales, mix: Mix, banned: set[int]
    ) -> list[Waiting]:
        """Chains of one stage that has not run yet, the cheapest first."""
        a, b, of_a, of_b = mix
        share, _, new, _, chunks, need = scales
        ground, figures, room = self._ground, self._figures, self._room
        found: list[Waiting] = []
        for i in ground.starting[0]:
            if room[i] < need or i in banned:
                continue
            base = ground.begin_ms(i, share) + figures[i].overhead_ms * chunks
            low = potential.rest[i][0]
            least = base + share * low[0] + of_a * low[a] + of_b * low[b]
            if ground.ends[i] < self._num_layers:  # its last mile on the way back
                least += ground.miles[i] * new
            found.append((least, i, Label(base, i, 0, i, None), None))
        found.sort()
        return found

    def _search(
        self,
        potential: Potential,
        scales: Scales,
        mix: Mix,
        banned: set[int],
        heap: list[Waiting],
        limit: float,
    ) -> tuple[float, Label] | None:
        """The cheapest below `limit`. `heap` is sorted, and used up."""
        a, b, of_a, of_b = mix
        share, prompt, new, carried, chunks, need = scales
        ground, figures, room = self._ground, self._figures, self._room
        miles, regions = ground.miles, ground.regions
        rest, options, num_layers = potential.rest, potential.options, self._num_layers
        closed: dict[tuple[int, int], list[Label]] = {}
        count = len(figures)
        while heap:
            least, _, label, at = heappop(heap)
            base, i, start, first, before = label
            if at == num_layers:
                return least, label
            once, per_prompt, per_new, _, head = figures[i]
            rate = once * share + per_prompt * prompt + per_new * new
            if at is None:
                if _is_beaten(closed, label, regions[first], ground.ends):
                    continue
                for x, low in options[i]:
                    if x <= start:
                        break
                    if x == num_layers:
                        least = base + rate * x + head * new
                        least += ground.finish_ms(i, first, share, new)
                    else:
                        least = base + share * low[0] + of_a * low[a] + of_b * low[b]
                    if least < limit:
                        count += 1
                        heappush(heap, (least, count, label, x))
                continue
            here = base + rate * at + miles[i] + ground.sent[i] * carried
            if before is None:
                here += miles[i] * new
            halves = ground.half_ms(regions[i])
            for k in ground.takers(i, at):
                once, per_prompt, per_new, overhead, _ = figures[k]
                base = here + halves[regions[k]] + miles[k] + overhead * chunks
                base -= at * (once * share + per_prompt * prompt + per_new * new)
                low = rest[k][at]
                least = base + share * low[0] + of_a * low[a] + of_b * low[b]
                if least >= limit or room[k] < need or k in banned or _holds(label, k):
                    continue
                narrow = ground.excess_ms(i, k) * carried
                if least + narrow < limit:
                    count += 1
                    new_label = Label(base + narrow, k, at, first, label)
                    heappush(heap, (least + narrow, count, new_label, None))
        return None

    def _now(self, i: int) -> Figures:
        """A node's figures as its load is."""
        board = self._board
        return _figures(board, i, board.loads[i], board.slows[i])

    def _refresh(self) -> None:
        """Take in the news; where a node became cheaper than was reckoned with, reckon with idle
        nodes from now on."""
        is_valid = True
        for i in self._stale:
            self._figures[i] = now = self._now(i)
            self._room[i] = min(KV_CAP_TOKENS, self._board.loads[i].kv_tokens_free)
            is_valid = is_valid and all(
                x >= low for x, low in zip(now, self._floors[i], strict=True)
            )
        self._stale.clear()
        if is_valid:
            return
        self._potential = None
        for i, now in enumerate(self._figures):
            slow = min(1.0, 0.8 * self._board.slows[i])
            idle = _figures(self._board, i, Load(0), slow)
            self._floors[i] = Figures(*map(min, now, idle, self._floors[i]))

    def _route(self, label: Label) -> Route:
        stages: list[Stage] = []
        end, at = self._num_layers, label
        while True:
            own = self._board.stage(at.node)
            stages.append(Stage(own.node_id, own.incarnation, LayerSpan(at.start, end)))
            if at.before is None:
                return tuple(stages[::-1])
            end, at = at.start, at.before


def _figures(board: Board, i: int, load: Load, slow: float) -> Figures:
    cost = board.cost(i)
    prefill = cost.prefill_layer_ms_per_token * slow
    return Figures(
        once_ms=max(0, load.queue_tokens) * prefill,
        prompt_ms=prefill,
        new_ms=step_layer_ms(cost, load) * slow,
        overhead_ms=cost.overhead_ms * slow,
        head_ms=cost.head_ms * slow,
    )


def _is_beaten(
    closed: dict[tuple[int, int], list[Label]], label: Label, region: int, ends: Sequence[int]
) -> bool:
    """Whether the same node was reached no later and no dearer, by a chain from the same region
    that keeps no further node from running again; remembers `label` where it was not."""
    known = closed.setdefault((label.node, region), [])
    for other in known:
        if other.start <= label.start and other.base_ms <= label.base_ms:
            at = other.before
            while at is not None and (ends[at.node] <= label.start or _holds(label, at.node)):
                at = at.before
            if at is None:
                return True
    known.append(label)
    return False


def _holds(label: Label, node: int) -> bool:
    at: Label | None = label
    while at is not None:
        if at.node == node:
            return True
        at = at.before
    return False
