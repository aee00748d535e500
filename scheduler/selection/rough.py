"""A near-cheapest chain where spans overlap, at the same small cost whoever may not be in it.

Every stage runs to the end of its span, so a chain is found wherever one exists, and no node is in
it twice; regions and the way back are reckoned with exactly. Then of two neighbours the faster one
gets all it can run. Boundary by boundary from the last, all nodes that hold the layer behind it at
once as arrays: the exact search (`stitched.py`) is quick only where nobody is left out, and what it
prepares takes long.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from plait.types import NodeId, Route
from scheduler.cost import PREFILL_CHUNK_TOKENS
from scheduler.selection.board import Board
from scheduler.selection.candidates import Query
from scheduler.selection.potential import Figures, Ground
from scheduler.selection.rows import KV_CAP_TOKENS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hand = tuple[int, int]
"""A node, and the boundary up to which it runs."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A boundary: who holds the layer behind it, region by region; `bounds` are where each region
    begins. `halves` is half the round trip from each region where a span ends here to each of
    those; `slots` are where costs from here on are kept."""

    at: int
    takers: Ints
    bounds: Ints
    halves: Floats
    slots: Ints


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request: what a hop is paid for; by node what it takes without the layers before the
    boundary it begins at, and per layer; costs from each slot on, by home. Downlinks slower than
    the uplink before them are not looked at, only counted at the end."""

    trips: float
    new: float
    rates: Floats
    whole: Floats
    rest: Floats


class Rough:
    """The search over one ground."""

    def __init__(self, board: Board, ground: Ground) -> None:
        self._board, self._ground = board, ground
        self._num_layers = ground.num_layers
        self._ends = np.array(ground.ends, dtype=np.float64)
        self._miles = np.array(ground.miles)
        self._sent = np.array(ground.sent)
        self._begin_ms = np.array(ground.begin_ms)
        self._regions = np.array(ground.regions, dtype=np.int64)
        self._is_last = self._ends == ground.num_layers
        home_of = {region: h for h, home in enumerate(ground.homes) for region in home}
        self._firsts = np.array(ground.starting[0], dtype=np.int64)
        self._homes = np.array([home_of[ground.regions[i]] for i in self._firsts], dtype=np.int64)
        ending = sorted({(ground.ends[i], ground.regions[i]) for i in range(len(ground.ends))})
        slot_of = {pair: slot for slot, pair in enumerate(ending)}
        self._ending = ending
        self._slot = np.array(
            [slot_of[pair] for pair in zip(ground.ends, ground.regions, strict=True)],
            dtype=np.int64,
        )
        self._cuts = {
            cut: self._cut(cut, slot_of)
            for cut in reversed(ground.cuts)
            if 0 < cut < ground.num_layers and ground.covering[cut] and cut in ground.ending
        }
        self._last = np.array([end == ground.num_layers for end, _ in ending])
        self._backs = np.array(
            [
                [
                    min(self._half_ms(region, other) for other in home) if is_last else np.inf
                    for (_, region), is_last in zip(ending, self._last, strict=True)
                ]
                for home in ground.homes
            ]
        ).reshape(len(ground.homes), len(ending))

    def _cut(self, cut: int, slot_of: dict[tuple[int, int], int]) -> _Cut:
        regions = self._ground.regions
        takers = sorted(self._ground.covering[cut], key=lambda i: (regions[i], i))
        bounds = [n for n, i in enumerate(takers) if n == 0 or regions[i] != regions[takers[n - 1]]]
        givers = sorted({regions[i] for i in self._ground.ending[cut]})
        halves = [[self._half_ms(a, regions[takers[n]]) for n in bounds] for a in givers]
        return _Cut(
            cut,
            np.array(takers, dtype=np.int64),
            np.array(bounds, dtype=np.int64),
            np.array(halves),
            np.array([slot_of[cut, region] for region in givers], dtype=np.int64),
        )

    def _half_ms(self, a: int, b: int) -> float:
        return self._board.region_half_ms(a, b)

    def best(
        self, query: Query, figures: Sequence[Figures], excluded: Collection[NodeId] = ()
    ) -> tuple[Route, float] | None:
        """A chain with room on every stage and its ms, or None: there is none."""
        if not len(self._firsts):
            return None
        asked = self._asked(query, figures, self._barred(query, excluded))
        # A chain of one stage has no way back.
        is_last = self._is_last[self._firsts]
        ways = asked.rest[self._homes, self._slot[self._firsts]]
        entered = self._begin_ms + np.where(self._is_last, 0.0, self._miles * asked.new)
        begun = asked.whole + entered - self._miles * asked.trips
        back = np.where(is_last, self._miles[self._firsts] * asked.new, 0.0)
        totals = begun[self._firsts] - back + np.where(is_last, 0.0, ways)
        place = int(np.argmin(totals))
        if not np.isfinite(totals[place]):
            return None
        path = self._walk(asked, int(self._firsts[place]), int(self._homes[place]))
        total, route = self._shifted(path, asked.rates, float(totals[place]))
        carried = query.prompt_tokens + asked.new
        return route, total + carried * sum(map(self._ground.excess_ms, path, path[1:]))

    def _barred(self, query: Query, excluded: Collection[NodeId]) -> Ints:
        need = min(KV_CAP_TOKENS, query.kv_tokens)
        barred = {i for i, load in enumerate(self._board.loads) if load[0] < need}
        barred.update(i for n in excluded if (i := self._board.index(n)) is not None)
        return np.array(sorted(barred), dtype=np.int64)

    def _asked(self, query: Query, figures: Sequence[Figures], barred: Ints) -> _Asked:
        prompt, new = query.prompt_tokens, max(1, query.new_tokens)
        trips, carried = 1 + new, prompt + new
        once, per_prompt, per_new, overhead, head = np.array(figures, dtype=np.float64).T
        rates = once + per_prompt * prompt + per_new * new
        whole = overhead * (1 + prompt / PREFILL_CHUNK_TOKENS + new) + self._ends * rates
        whole += self._miles * trips
        on_ms = self._miles * trips + self._sent * carried
        whole += np.where(self._is_last, head * new + self._begin_ms + self._miles * new, on_ms)
        whole[barred] = np.inf
        rest = self._backs * new
        for cut in self._cuts.values():
            ahead = rest[:, self._slot[cut.takers]]
            ahead += whole[cut.takers] - cut.at * rates[cut.takers]
            lows = np.minimum.reduceat(ahead, cut.bounds, axis=1)
            rest[:, cut.slots] = (lows[:, None, :] + cut.halves * trips).min(axis=2)
        return _Asked(trips, new, rates, whole, rest)

    def _walk(self, asked: _Asked, first: int, home: int) -> list[int]:
        """The nodes that the least costs lead through."""
        path = [first]
        at = self._ground.ends[first]
        while at < self._num_layers:
            cut = self._cuts[at]
            given = int(np.searchsorted(cut.slots, self._slot[path[-1]]))
            ahead = asked.rest[home, self._slot[cut.takers]] + asked.whole[cut.takers]
            ahead -= cut.at * asked.rates[cut.takers]
            sizes = np.diff(np.append(cut.bounds, len(cut.takers)))
            ahead += np.repeat(cut.halves[given] * asked.trips, sizes)
            path.append(int(cut.takers[int(np.argmin(ahead))]))
            at = self._ground.ends[path[-1]]
        return path

    def _shifted(self, path: list[int], rates: Floats, total: float) -> tuple[float, Route]:
        """Boundaries moved to where the taker begins, where it is the faster one."""
        starts, ends = self._ground.starts, self._ground.ends
        at = 0
        hands: list[Hand] = []
        for one, two in pairwise(path):
            end, gain = ends[one], float(rates[one] - rates[two])
            if gain > 0.0:
                end = min(end, max(starts[two], at + 1))
                total -= gain * (ends[one] - end)
            hands.append((one, end))
            at = end
        hands.append((path[-1], ends[path[-1]]))
        return total, self._board.part_route(hands)
