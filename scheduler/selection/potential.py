"""What a chain must still cost, at least, from any node and boundary on: for a few mixes of prompt
and answer, and with nodes as cheap as they may be.

The least cost is the minimum of linear functions of a request's lengths: it is concave and grows
with them, so between two mixes it is at least the weighted sum of both.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from scheduler.cost import PREFILL_CHUNK_TOKENS
from scheduler.selection.board import Board
from scheduler.selection.groups import INFINITE

MIXES: Final = (0.0, 1.0, 4.0, 8.0, 16.0, 64.0)
"""Prompt tokens per new token."""
BASIS: Final = (
    (1.0, 0.0, 0.0),
    *((0.0, mix, 1.0) for mix in MIXES),
    (0.0, 1.0, 0.0),
)
"""Once, prompt tokens, new tokens: what is paid once alone, the mixes, a prompt alone."""

Mix = tuple[int, int, float, float]
"""Two places in BASIS, and how much of each."""

Lows = tuple[float, ...]
"""The least for each of BASIS."""


class Figures(NamedTuple):
    """Of a node now. Per layer: ms once, per prompt token, per new token. Whatever it runs: ms per
    step or chunk, ms of the head per new token."""

    once_ms: float
    prompt_ms: float
    new_ms: float
    overhead_ms: float
    head_ms: float


class Ground:
    """Spans, boundaries and links of a board: what no load changes."""

    def __init__(self, board: Board, num_layers: int) -> None:
        spans = [c.span for c in board.candidates]
        self.num_layers = num_layers
        self.starts = [s.start for s in spans]
        self.ends = [s.end for s in spans]
        self.cuts = sorted({s.start for s in spans} | {s.end for s in spans})
        self.starting: dict[int, list[int]] = {cut: [] for cut in (0, *self.cuts)}
        for i, span in enumerate(spans):
            self.starting[span.start].append(i)
        self.covering = {
            cut: [i for i, s in enumerate(spans) if s.start <= cut < s.end] for cut in self.cuts
        }
        self.regions = [board.region(i) for i in range(len(spans))]
        self.miles = [place.mile_ms / 2 for place in board.places]
        self.sent = [place.sent_ms_per_token for place in board.places]
        self.excess_ms = board.excess_ms
        self._board = board
        self._coordinator = [place.coordinator_rtt_ms / 2 for place in board.places]
        self._all = sorted(set(self.regions))
        self._halves: dict[int, dict[int, float]] = {}

    def takers(self, i: int, cut: int) -> list[int]:
        """Who may go on from node i: anybody where its span ends, elsewhere who starts there."""
        return self.covering[cut] if self.ends[i] == cut else self.starting[cut]

    def half_ms(self, region: int) -> dict[int, float]:
        """Half the round trip from a region to each, without last miles."""
        known = self._halves.get(region)
        if known is None:
            known = {other: self._board.region_half_ms(region, other) for other in self._all}
            self._halves[region] = known
        return known

    def begin_ms(self, i: int, share: float) -> float:
        """The prompt's way to the first stage."""
        return self._coordinator[i] * share

    def finish_ms(self, i: int, first: int, share: float, new: float) -> float:
        """Every token's way to the first stage, and the first one's to the gateway."""
        total = self._coordinator[i] * share
        if i != first:
            back = self.half_ms(self.regions[i])[self.regions[first]] + self.miles[i]
            total += back * new
        return total


class Potential:
    """`options[i]`: boundaries where node i may hand over, the last first, and the least total of
    doing so as if it had run from layer 0. `rest[i][cut]`: the least of those behind `cut`."""

    def __init__(self, ground: Ground, floors: Sequence[Figures]) -> None:
        size = len(floors)
        self.options: list[list[tuple[int, Lows]]] = [[] for _ in range(size)]
        self.rest: list[dict[int, Lows]] = [{} for _ in range(size)]
        nothing = (INFINITE,) * len(BASIS)
        so_far: list[Lows] = [nothing] * size
        rates = [_rates(own) for own in floors]
        for cut in sorted({0, *ground.cuts, ground.num_layers}, reverse=True):
            inner = [i for i in ground.covering.get(cut, ()) if ground.starts[i] < cut]
            ending = [i for i in range(size) if ground.ends[i] == cut]
            for i in ground.covering.get(cut, ()):
                self.rest[i][cut] = so_far[i]
            for group, takers in (
                (ending, ground.covering.get(cut, [])),
                (inner, ground.starting.get(cut, [])),
            ):
                onward = self._onward(ground, floors, rates, cut, group, takers)
                for i in group:
                    if cut == ground.num_layers:
                        low = _last(ground, i, floors[i], rates[i])
                    elif takers:
                        low = _handed(ground, i, cut, rates[i], onward[ground.regions[i]])
                    else:
                        continue
                    self.options[i].append((cut, low))
                    so_far[i] = tuple(map(min, so_far[i], low))

    def _onward(
        self,
        ground: Ground,
        floors: Sequence[Figures],
        rates: Sequence[Lows],
        cut: int,
        group: Sequence[int],
        takers: Sequence[int],
    ) -> dict[int, Lows]:
        """By region of who hands over: the least of any taker's rest."""
        entered: dict[int, Lows] = {}
        for k in takers:
            low = tuple(
                r + o + ground.miles[k] * (once + new) - cut * rate
                for r, o, rate, (once, _, new) in zip(
                    self.rest[k][cut], _overheads(floors[k]), rates[k], BASIS, strict=True
                )
            )
            known = entered.get(ground.regions[k])
            entered[ground.regions[k]] = low if known is None else tuple(map(min, known, low))
        found: dict[int, Lows] = {}
        for region in {ground.regions[i] for i in group}:
            halves = ground.half_ms(region)
            found[region] = tuple(
                min(
                    (low[at] + halves[other] * (once + new) for other, low in entered.items()),
                    default=INFINITE,
                )
                for at, (once, _, new) in enumerate(BASIS)
            )
        return found


def blend(prompt: float, new: float) -> Mix:
    """Two places in BASIS and how much of each makes up a request's tokens. `new` is positive."""
    ratio = prompt / new
    at = bisect_right(MIXES, ratio)
    if at == len(MIXES):
        return at, at + 1, new, prompt - MIXES[-1] * new
    low, high = MIXES[at - 1], MIXES[at]
    of_high = (ratio - low) / (high - low)
    return at, at + 1, new * (1 - of_high), new * of_high


def _rates(own: Figures) -> Lows:
    return tuple(
        own.once_ms * once + own.prompt_ms * prompt + own.new_ms * new
        for once, prompt, new in BASIS
    )


def _overheads(own: Figures) -> Lows:
    return tuple(
        own.overhead_ms * (once + prompt / PREFILL_CHUNK_TOKENS + new)
        for once, prompt, new in BASIS
    )


def _handed(ground: Ground, i: int, cut: int, rates: Lows, onward: Lows) -> Lows:
    """A hop happens once per trip, and trips are `once` and `new` together."""
    return tuple(
        rate * cut + ground.miles[i] * (once + new) + ground.sent[i] * (prompt + new) + rest
        for rate, rest, (once, prompt, new) in zip(rates, onward, BASIS, strict=True)
    )


def _last(ground: Ground, i: int, own: Figures, rates: Lows) -> Lows:
    """With the shortest way back, where it cannot be the first stage as well."""
    back = 0.0
    if ground.starts[i] > 0:
        halves = ground.half_ms(ground.regions[i])
        regions = {ground.regions[first] for first in ground.starting[0]}
        back = ground.miles[i] + min((halves[region] for region in regions), default=0.0)
    return tuple(
        rate * ground.num_layers + (own.head_ms + back) * new + ground.finish_ms(i, i, once, new)
        for rate, (once, _, new) in zip(rates, BASIS, strict=True)
    )
