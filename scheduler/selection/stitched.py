"""The exact chain where spans overlap: a stage may run any part of what its node holds.

Costs are linear in the layers a stage runs, so of two neighbours the faster one runs all it can:
one hands over where its span ends, or where the other's begins. Best first (A*): what a chain must
still cost at least is known beforehand (`potential.py`), so little but the answer is looked at.
"""

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from operator import ge
from typing import Final, Optional

from plait.types import LayerSpan, NodeId, Route, Stage
from scheduler.cost import PREFILL_CHUNK_TOKENS
from scheduler.selection.board import Board
from scheduler.selection.candidates import Load, Query, Told, step_layer_ms
from scheduler.selection.groups import INFINITE
from scheduler.selection.lines import Lines, Potentials, Taker
from scheduler.selection.potential import Figures, Ground
from scheduler.selection.rows import KV_CAP_TOKENS

SLACKS: Final = (1.02, 1.2, INFINITE)
"""How far above the least first guess chains are looked at, tried in turn."""
QUICKER: Final = 0.9
"""A node that is quicker than it measured itself may yet become so much quicker."""
STAGES_KEPT_MAX: Final = 4_096

Scales = tuple[float, float, int]
"""A request's lengths per new token: once, prompt tokens. The KV slots needed on every stage."""

Label = tuple[float, int, int, int, int, Optional["Label"]]
"""A chain so far. Its cost as if its last node had run from layer 0 on (what it costs at a boundary
is that and the boundary times the node's ms per layer), that node, the boundary it begins at, the
first node, how far any node before holds layers, the chain before. Plain tuples: there are many."""

Waiting = tuple[float, int, Label | None, int, int, float, Lines, list[Taker]]
"""What a chain costs at least, a number that breaks ties, the chain, the boundary where it hands
over, to which node (OPEN: not chosen yet), what it costs up to there, what bounds it, who may take
over where that is open."""
OPEN: Final = -1
NOBODY: Final[list[Taker]] = []


class Stitcher:
    """The search over one board; keeps what requests share."""

    def __init__(self, board: Board, num_layers: int) -> None:
        self._board = board
        self._num_layers = num_layers
        self._ground = Ground(board, num_layers)
        size = len(board.candidates)
        self._figures = [self._now(i) for i in range(size)]
        self._room = [min(KV_CAP_TOKENS, free) for free, _, _, _ in board.loads]
        self._floors = list(self._figures)
        self._potentials = Potentials(self._ground, self._floors)
        self._stages: dict[tuple[int, int, int], Stage] = {}
        self._stale: set[int] = set()
        board.listeners.append(self._stale.update)

    @property
    def ground(self) -> Ground:
        """Spans, boundaries and links."""
        return self._ground

    def figures(self) -> Sequence[Figures]:
        """Of each node, as its load is now."""
        self._take_in()
        return self._figures

    def prepare(self, query: Query) -> bool:
        """Work out a part of what searches for such a request need. False: nothing is missing."""
        self._take_in()
        return self._potentials.prepare(query.prompt_tokens / max(1, query.new_tokens))

    def is_prepared(self, query: Query) -> bool:
        """Whether a search for such a request can begin at once."""
        self._take_in()
        return self._potentials.is_prepared(query.prompt_tokens / max(1, query.new_tokens))

    def _take_in(self) -> None:
        self._board.take_in()
        if self._stale:
            self._refresh()

    def best(self, query: Query, excluded: Collection[NodeId] = ()) -> tuple[Route, float] | None:
        """The cheapest chain with room on every stage and its ms, or None."""
        if self._stale or self._board.news:
            self._take_in()
        steps = max(1, query.new_tokens)
        share = 1.0 / steps
        prompt = query.prompt_tokens * share
        need = min(KV_CAP_TOKENS, query.kv_tokens)
        room = self._without(excluded) if excluded else self._room
        scales = (share, prompt, need)
        for slack in SLACKS:
            heap, limit = self._begin(scales, room, slack)
            found = self._search(scales, room, heap, limit)
            if found is not None:
                total, label = found
                return self._route(label), total * steps
        return None

    def _begin(
        self, scales: Scales, room: Sequence[int], slack: float
    ) -> tuple[list[Waiting], float]:
        """First nodes up to so far above the cheapest, and how much that is."""
        share, prompt, need = scales
        begin_ms, limit = self._ground.begin_ms, INFINITE
        heap: list[Waiting] = []
        for floor, once, per_prompt, per_new, i, lines in self._potentials.firsts(prompt):
            if floor >= limit:
                break
            least = once * share + per_prompt * prompt + per_new
            if least < limit and room[i] >= need:
                heap.append((least, i, None, 0, i, begin_ms[i] * share, lines, NOBODY))
                if least * slack < limit:
                    limit = least * slack
        heapify(heap)
        return heap, limit

    def _search(
        self,
        scales: Scales,
        room: Sequence[int],
        heap: list[Waiting],
        limit: float,
    ) -> tuple[float, Label] | None:
        """The cheapest below `limit`."""
        share, prompt, need = scales
        trips, carried = 1.0 + share, prompt + 1.0
        chunks = trips + prompt / PREFILL_CHUNK_TOKENS
        ground, figures, num_layers = self._ground, self._figures, self._num_layers
        miles, regions, ends = ground.miles, ground.regions, ground.ends
        ups, downs = ground.ups, ground.downs
        closed: dict[tuple[int, int], list[Label]] = {}
        ticks = count(len(figures))
        best: Label | None = None
        while heap:
            least, _, label, at, k, here, lines, takers = heappop(heap)
            if least >= limit:
                break
            if k == OPEN and label is not None:
                _, i, _, _, reach, _ = label
                here += miles[i] * trips + ground.sent[i] * carried
                low_max, is_clear = limit - here, reach <= at >= ends[i]
                for once, per_prompt, per_new, k, hop in takers or lines.takers(i, at):
                    low = once * share + per_prompt * prompt + per_new
                    if low < low_max and room[k] >= need and (is_clear or not _holds(label, k)):
                        there = here
                        if downs[k] < ups[i]:
                            there += ground.excess_ms(i, k) * carried
                        least, there = there + low, there + hop * trips
                        heappush(heap, (least, next(ticks), label, at, k, there, lines, NOBODY))
                continue
            once, per_prompt, per_new, overhead, head = figures[k]
            rate = once * share + per_prompt * prompt + per_new
            here += overhead * chunks - at * rate
            back = 0.0
            if label is None:
                label, first, back = (here, k, 0, k, 0, None), k, miles[k]
            else:
                _, giver, _, first, reach, _ = label
                held = ends[giver]
                label = (here, k, at, first, reach if reach > held else held, label)
            known = closed.get((k, regions[first]))
            if known is None:
                closed[k, regions[first]] = [label]
            elif _is_beaten(known, label, ends):
                continue
            else:
                known.append(label)
            if ends[k] == num_layers:
                least = here + rate * num_layers + head
                least += ground.finish_ms(k, first, share, 1.0)
                if least < limit:
                    limit, best = least, label
            here += back  # ends at the mile of the first node
            for once, per_prompt, per_new, x, takers in lines.options(k):
                if x <= at:
                    break
                least = here + rate * x + once * share + per_prompt * prompt + per_new
                if least < limit:
                    there = here + rate * x
                    heappush(heap, (least, next(ticks), label, x, OPEN, there, lines, takers))
        return (limit, best) if best is not None else None

    def _without(self, excluded: Collection[NodeId]) -> list[int]:
        """Nodes' room, as if the excluded ones had none."""
        room = self._room[:]
        for node_id in excluded:
            index = self._board.index(node_id)
            if index is not None:
                room[index] = -1
        return room

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
            self._room[i] = min(KV_CAP_TOKENS, self._board.loads[i][0])
            is_valid = is_valid and all(map(ge, now, self._floors[i]))
        self._stale.clear()
        if is_valid:
            return
        for i, now in enumerate(self._figures):
            seen = self._board.slows[i]
            slow = 1.0 if seen >= 1.0 else QUICKER * seen
            idle = _figures(self._board, i, Load(0), slow)
            self._floors[i] = Figures(*map(min, now, idle, self._floors[i]))
        self._potentials = Potentials(self._ground, self._floors)

    def _route(self, label: Label) -> Route:
        stages: list[Stage] = []
        end, at = self._num_layers, label
        while True:
            _, node, start, _, _, before = at
            key = (node, start, end)
            stage = self._stages.get(key)
            if stage is None:
                if len(self._stages) >= STAGES_KEPT_MAX:
                    self._stages.clear()
                own = self._board.stage(node)
                stage = Stage(own.node_id, own.incarnation, LayerSpan(start, end))
                self._stages[key] = stage
            stages.append(stage)
            if before is None:
                return tuple(stages[::-1])
            end, at = start, before


def _figures(board: Board, i: int, load: Told, slow: float) -> Figures:
    cost = board.cost(i)
    _, _, queue_tokens, _ = load
    prefill = cost.prefill_layer_ms_per_token * slow
    return Figures(
        max(0, queue_tokens) * prefill,
        prefill,
        step_layer_ms(cost, load) * slow,
        cost.overhead_ms * slow,
        cost.head_ms * slow,
    )


def _is_beaten(known: Sequence[Label], label: Label, ends: Sequence[int]) -> bool:
    """Whether the same node was reached no later and no dearer, by a chain from the same region
    that keeps no further node from running again."""
    base_ms, _, start, *_ = label
    for other_ms, _, other_start, _, _, at in known:
        if other_start <= start and other_ms <= base_ms:
            while at is not None and (ends[at[1]] <= start or _holds(label, at[1])):
                at = at[-1]
            if at is None:
                return True
    return False


def _holds(label: Label, node: int) -> bool:
    at: Label | None = label
    while at is not None:
        if at[1] == node:
            return True
        at = at[-1]
    return False
