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
from scheduler.selection.lines import Lines, Potentials
from scheduler.selection.potential import Figures, Ground
from scheduler.selection.rows import KV_CAP_TOKENS

SLACKS: Final = (1.02, 1.2, INFINITE)
"""How far above the least first guess chains are looked at, tried in turn."""
QUICKER: Final = 0.9
"""A node that is quicker than it measured itself may yet become so much quicker."""
STAGES_KEPT_MAX: Final = 4_096

Scales = tuple[float, float, float, float, float, int]
"""A request's lengths per trip round the ring: once, prompt tokens, new tokens. Then what a hop
carries of both per trip, the steps and chunks of the prompt, the KV slots needed on every stage."""

Label = tuple[float, int, int, int, int, Optional["Label"]]
"""A chain so far. Its cost as if its last node had run from layer 0 on (what it costs at a boundary
is that and the boundary times the node's ms per layer), that node, the boundary it begins at, the
first node, how far any node before holds layers, the chain before. Plain tuples: there are many."""

Waiting = tuple[float, int, Label | None, int, int, float, Lines]
"""What a chain costs at least, a number that breaks ties, the chain, the boundary where it hands
over, to which node (OPEN: not chosen yet), what it costs up to there, what bounds it."""
OPEN: Final = -1


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
        self._take_in()
        steps = max(1, query.new_tokens)
        share = 1.0 / (1 + steps)
        prompt, new = query.prompt_tokens * share, steps * share
        need = min(KV_CAP_TOKENS, query.kv_tokens)
        chunks = share + prompt / PREFILL_CHUNK_TOKENS + new
        room = self._without(excluded) if excluded else self._room
        firsts = [
            (once * share + per_prompt * prompt + per_new * new, i, lines)
            for once, per_prompt, per_new, i, lines in self._potentials.firsts(prompt / new)
            if room[i] >= need
        ]
        if not firsts:
            return None
        least = min(firsts)[0]
        scales = (share, prompt, new, prompt + new, chunks, need)
        for slack in SLACKS:
            found = self._search(scales, room, firsts, slack * least)
            if found is not None:
                total, label = found
                return self._route(label), total * (1 + steps)
        return None

    def _search(
        self,
        scales: Scales,
        room: Sequence[int],
        firsts: Sequence[tuple[float, int, Lines]],
        limit: float,
    ) -> tuple[float, Label] | None:
        """The cheapest below `limit`."""
        share, prompt, new, carried, chunks, need = scales
        ground, figures, num_layers = self._ground, self._figures, self._num_layers
        miles, regions, ends, ups = ground.miles, ground.regions, ground.ends, ground.ups
        heap: list[Waiting] = [
            (least, i, None, 0, i, ground.begin_ms[i] * share, lines)
            for least, i, lines in firsts
            if least < limit
        ]
        heapify(heap)
        closed: dict[tuple[int, int], list[Label]] = {}
        ticks = count(len(figures))
        best: Label | None = None
        while heap:
            least, _, label, at, k, here, lines = heappop(heap)
            if least >= limit:
                break
            if k == OPEN and label is not None:
                _, i, _, _, reach, _ = label
                here += miles[i] + ground.sent[i] * carried
                low_max, is_clear = limit - here, reach <= at >= ends[i]
                for low, k in [
                    (low, k)
                    for once, per_prompt, per_new, k in lines.takers(i, at)
                    if (low := once * share + per_prompt * prompt + per_new * new) < low_max
                ]:
                    if room[k] >= need and (is_clear or not _holds(label, k)):
                        there = here
                        if ground.downs[k] < ups[i]:
                            there += ground.excess_ms(i, k) * carried
                        hop = ground.half_ms(regions[i])[regions[k]] + miles[k]
                        heappush(heap, (there + low, next(ticks), label, at, k, there + hop, lines))
                continue
            once, per_prompt, per_new, overhead, head = figures[k]
            rate = once * share + per_prompt * prompt + per_new * new
            here += overhead * chunks - at * rate
            if label is None:
                label, first = (here, k, 0, k, 0, None), k
            else:
                first = label[3]
                label = (here, k, at, first, max(label[4], ends[label[1]]), label)
            known = closed.setdefault((k, regions[first]), [])
            if known and _is_beaten(known, label, ends):
                continue
            known.append(label)
            for once, per_prompt, per_new, x in lines.options(k):
                if x <= at:
                    break
                there = here + rate * x
                if x == num_layers:
                    least = there + head * new + ground.finish_ms(k, first, share, new)
                    if least < limit:
                        limit, best = least, label
                    continue
                if k == first:  # the way back ends at its mile
                    there += miles[k] * new
                least = there + once * share + per_prompt * prompt + per_new * new
                if least < limit:
                    heappush(heap, (least, next(ticks), label, x, OPEN, there, lines))
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
