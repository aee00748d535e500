"""A few chains kept ready: priced live, chosen as planned, reserved.

Looking for chains happens when nodes come and go; a request only prices those that are ready.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from plait.types import NodeId, Route
from scheduler.selection.board import Board
from scheduler.selection.candidates import Query
from scheduler.selection.groups import INFINITE
from scheduler.selection.rows import KV_CAP_TOKENS, Base, Paced, paced

CHAINS_MAX: Final = 32
FLOW_CHUNK_TOKENS: Final = 128
"""Of a prompt, what moves on at once."""
NEAR: Final = 1.1
"""Chains up to this much dearer than the cheapest take turns, as the plan weighs them."""


Sum = tuple[float, float, float, float, int, float]
"""Of a chain: fixed ms, ms per prompt token of its slowest part, of all other parts, ms per new
token, free KV slots, and what of the fixed ms is prompts that wait before this one."""

Quick = tuple[float, float, float]
"""What a prompt of a whole chunk or more is priced by: ms to the first token without what its
slowest part takes, ms per prompt token of that one, ms per new token."""

Still = tuple[float, float, float, float, tuple[tuple[int, float, float, float], ...]]
"""What loads do not change of a sum: fixed ms, both ms per prompt token, hops in ms per new token;
of each stage its row, ms per new token alone, what a further sequence adds, and its pace."""

Way = tuple[float, float]
"""Hops of a chain, last miles and uplinks: ms once, and per new token."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A route kept ready, and the share of the load that the plan gives it."""

    route: Route
    weight: float

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        """Its nodes in order."""
        return tuple(stage.node_id for stage in self.route)


class Obstacle(NamedTuple):
    """What keeps a chain from a request: a node, None where it is none, and why."""

    node_id: NodeId | None
    why: str


class Chains:
    """Up to CHAINS_MAX chains over one board."""

    def __init__(self, board: Board, chains: Sequence[Chain]) -> None:
        self._board = board
        self.all: tuple[Chain, ...] = ()
        self.ways: tuple[Way, ...] = ()
        self.sums: tuple[Sum, ...] = ()
        """What prices are made of, as they were last asked for."""
        self._indices: list[list[int]] = []
        self._trips: list[tuple[float, float, float]] = []
        self._of_row: dict[int, list[int]] = {}
        self._cut: list[tuple[Base, ...] | None] = []
        self._still: list[Still | None] = []
        self._own: list[Sum] = []
        self._quick: list[Quick] = []
        self._free: list[int] = []
        self._least_free = KV_CAP_TOKENS
        self._stale: set[int] = set()
        self._credits: list[float] = []
        self._weights: list[float] = []
        for chain in chains[:CHAINS_MAX]:
            self.add(chain)

    def add(self, chain: Chain) -> None:
        """Keep another one ready."""
        c = len(self.all)
        indices = [i for s in chain.route if (i := self._board.index(s.node_id)) is not None]
        self.all = (*self.all, chain)
        self._indices.append(indices)
        self._trips.append(self._board.trip(indices))
        self.ways = (*self.ways, self._way(c))
        for i in indices:
            self._of_row.setdefault(i, []).append(c)
        self._cut.append(self._cut_bases(c))
        self._still.append(None)
        own, quick = self._sum(c)
        self._own.append(own)
        self._quick.append(quick)
        self._free.append(own[4])
        self._least_free = min(self._free)
        self._credits.append(0.0)
        self._weights.append(chain.weight)
        self.sums = tuple(self._own)

    def update(self, news: Iterable[int]) -> None:
        """Rows of the board changed: so did the chains over them. Summed up again when they are
        next asked for, once for all the news of a chain."""
        of_row, stale = self._of_row, self._stale
        for index in self._board.repaced:
            for c in of_row.get(index, ()):
                self._still[c] = None
        for index in news:
            for c in of_row.get(index, ()):
                stale.add(c)

    def recut(self, index: int) -> None:
        """The board's row `index` may have other costs."""
        for c in self._of_row.get(index, ()):
            self._still[c] = None
            if self._cut[c] is not None:
                self._cut[c] = self._cut_bases(c)

    def total(self, c: int, query: Query) -> float:
        """What one chain is priced at, whatever room it has."""
        self.refresh()
        return _prices(query, [self._quick[c]], [self.sums[c]])[0]

    def totals(self, query: Query) -> list[float]:
        """What each chain is priced at, infinite where KV is short: by the promise where there is
        one, else by the time to the last token."""
        if self._stale:
            self.refresh()
        totals = _prices(query, self._quick, self.sums)
        if query.kv_tokens > self._least_free:
            need = min(query.kv_tokens, KV_CAP_TOKENS)
            for c, free in enumerate(self._free):
                if free < need:
                    totals[c] = INFINITE
        return totals

    def has_room(self, query: Query) -> bool:
        """Whether every chain has."""
        return query.kv_tokens <= self._least_free

    def without(self, totals: list[float], excluded: Collection[NodeId]) -> None:
        """Take chains over `excluded` out of `totals`."""
        for node_id in excluded:
            index = self._board.index(node_id)
            for c in self._of_row.get(index, ()) if index is not None else ():
                totals[c] = INFINITE

    def turn(self, totals: Sequence[float]) -> int | None:
        """Whose turn it is among the cheapest and those near it; None: no chain has room.

        Smooth weighted round robin: everyone near earns its weight, the richest is taken and pays
        for all, so that shares follow the plan without bursts.
        """
        least = min(totals, default=INFINITE)
        if least == INFINITE:
            return None
        most = least * NEAR
        earned, richest, chosen = 0.0, -INFINITE, 0
        credits_, weights = self._credits, self._weights
        for c, total in enumerate(totals):
            if total <= most:
                weight = weights[c]
                earned += weight
                credits_[c] = credit = credits_[c] + weight
                if credit > richest:
                    richest, chosen = credit, c
        credits_[chosen] -= earned
        return chosen

    def figures(self, c: int, query: Query) -> tuple[float, float]:
        """Expected ms to the first token, and per token after it."""
        fixed, slowest, rest, per_new, _, _ = self.sums[c]
        prompt = query.prompt_tokens
        chunk = prompt if prompt < FLOW_CHUNK_TOKENS else FLOW_CHUNK_TOKENS
        return fixed + slowest * prompt + rest * chunk + per_new, per_new

    def obstacle(self, c: int, query: Query, excluded: Collection[NodeId]) -> Obstacle:
        """Why a chain cannot take a request: an avoided node, the fullest one, or a hop."""
        stages = self.all[c].route
        avoided = next((s.node_id for s in stages if s.node_id in excluded), None)
        if avoided is not None:
            return Obstacle(avoided, "avoided")
        free, at = min((self._board.loads[i][0], i) for i in self._indices[c])
        if free < query.kv_tokens:
            why = f"no room: {max(0, free)} of {query.kv_tokens} tokens free"
            return Obstacle(self._board.stage(at).node_id, why)
        return Obstacle(None, "a hop is broken")

    def _way(self, c: int) -> Way:
        once, _, per_new = self._trips[c]
        for i, stage in zip(self._indices[c], self.all[c].route, strict=True):
            own = self._board.base_of(i, stage.span)
            once += own.fixed_place_ms
            per_new += own.step_place_ms
        return once, per_new

    def refresh(self) -> None:
        """Sum up what there is news of."""
        own, quick, free = self._own, self._quick, self._free
        for c in self._stale:
            before = free[c]
            own[c], quick[c] = now, _ = self._sum(c)
            free[c] = now[4]
            if now[4] < self._least_free:
                self._least_free = now[4]
            elif before == self._least_free:
                self._least_free = min(free)
        self._stale.clear()
        self.sums = tuple(own)

    def _cut_bases(self, c: int) -> tuple[Base, ...] | None:
        """Of a chain whose stages run parts of what they hold; None where all run everything."""
        board, stages = self._board, list(zip(self._indices[c], self.all[c].route, strict=True))
        if all(board.stage(i).span == stage.span for i, stage in stages):
            return None
        return tuple(board.base_of(i, stage.span) for i, stage in stages)

    def _sum(self, c: int) -> tuple[Sum, Quick]:
        still = self._still[c]
        if still is None:
            still = self._still[c] = self._still_of(c)
        fixed, slowest, rest, per_new, parts = still
        loads = self._board.loads
        free, waiting = KV_CAP_TOKENS, 0.0
        for i, step, extra, pace in parts:
            kv, num_requests, queue_tokens, _ = loads[i]
            per_new += step + num_requests * extra
            if kv < free:
                free = kv
            if queue_tokens > 0 and queue_tokens * pace > waiting:
                waiting = queue_tokens * pace
        fixed += waiting
        return (
            (fixed, slowest, rest, per_new, free, waiting),
            (fixed + rest * FLOW_CHUNK_TOKENS + per_new, slowest, per_new),
        )

    def _still_of(self, c: int) -> Still:
        board, indices, cut = self._board, self._indices[c], self._cut[c]
        now: Mapping[int, Paced] | Sequence[Paced] = board.paced
        if cut is not None:
            now = {i: paced(own, board.slows[i]) for own, i in zip(cut, indices, strict=True)}
        fixed, per_prompt, per_new = self._trips[c]
        slowest, parts = 0.0, []
        for i in indices:
            once, prompt, step, extra, pace = now[i]
            fixed += once
            per_prompt += prompt
            slowest = max(slowest, pace)
            parts.append((i, step, extra, pace))
        return fixed, slowest, per_prompt - slowest, per_new, tuple(parts)


def _prices(query: Query, quick: Sequence[Quick], sums: Sequence[Sum]) -> list[float]:
    """By chain, whatever room it has. By time: milliseconds to the last expected token. By a
    promise: the share of it that the chain would need, times the promised total, the worse of
    first token and later ones; so load is spread before either is at risk.

    Chunks of a prompt follow each other: all of it passes the slowest part, one chunk at a time
    the others.
    """
    # No max(), no product that can wait, floats alone: this is most of what choosing costs.
    prompt = float(query.prompt_tokens)
    if prompt < FLOW_CHUNK_TOKENS:
        quick = [(f + rest * prompt + s, slowest, s) for f, slowest, rest, s, _, _ in sums]
    promise = query.promise
    if promise is None:
        later = max(1, query.new_tokens) - 1
        return [first + slowest * prompt + s * later for first, slowest, s in quick]
    ttft_ms, token_ms = promise.ttft_ms, promise.token_ms
    per_token = ttft_ms / token_ms + (query.new_tokens or 1)
    ratio = token_ms / (ttft_ms if ttft_ms > 1.0 else 1.0)
    return [
        share * per_token if (share := (first + slowest * prompt) * ratio) > s else s * per_token
        for first, slowest, s in quick
    ]
