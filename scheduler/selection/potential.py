"""What a chain must still cost, at least, from any node and boundary on: for one mix of prompt and
answer, and with nodes as cheap as they may be.

The least cost is the minimum of linear functions of a request's lengths: it is concave and grows
with them, so between two mixes it is at least the weighted sum of both.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from scheduler.cost import PREFILL_CHUNK_TOKENS
from scheduler.selection.board import Board
from scheduler.selection.groups import INFINITE

HOMES_MAX: Final = 8
"""Where chains begin in more regions than these, the way back is reckoned to the nearest."""


class Lengths(NamedTuple):
    """What is paid for: once, prompt tokens, new tokens."""

    once: float
    prompt: float
    new: float


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
        self.ending: dict[int, list[int]] = {}
        for i, span in enumerate(spans):
            self.ending.setdefault(span.end, []).append(i)
        self.inner = {
            cut: [i for i in own if spans[i].start < cut] for cut, own in self.covering.items()
        }
        self.regions = [board.region(i) for i in range(len(spans))]
        homes = sorted({self.regions[i] for i in self.starting[0]})
        self.homes = [(home,) for home in homes] if len(homes) <= HOMES_MAX else [tuple(homes)]
        """Where chains begin: regions that bounds are worked out for together."""
        self.miles = [place.mile_ms / 2 for place in board.places]
        self.sent = [place.sent_ms_per_token for place in board.places]
        self.excess_ms = board.excess_ms
        self.ups, self.downs = board.bandwidths()
        self._board = board
        self.begin_ms = [place.coordinator_rtt_ms / 2 for place in board.places]
        """The prompt's way to the first stage."""
        self._all = sorted(set(self.regions))
        self._halves: dict[int, dict[int, float]] = {}

    def half_ms(self, region: int) -> dict[int, float]:
        """Half the round trip from a region to each, without last miles."""
        known = self._halves.get(region)
        if known is None:
            known = {other: self._board.region_half_ms(region, other) for other in self._all}
            self._halves[region] = known
        return known

    def finish_ms(self, i: int, first: int, share: float, new: float) -> float:
        """Every token's way to the first stage, and the first one's to the gateway."""
        total = self.begin_ms[i] * share
        if i != first:
            back = self.half_ms(self.regions[i])[self.regions[first]] + self.miles[i]
            total += back * new
        return total


class Potential:
    """For chains that begin in one of the regions `home`. `options[i]`: boundaries where node i may
    hand over, the last first, and the least of what follows it. `rest[i][cut]`: the least of
    running node i from layer 0 to a boundary behind `cut` and of what follows."""

    def __init__(
        self,
        ground: Ground,
        floors: Sequence[Figures],
        lengths: Lengths,
        home: Collection[int],
    ) -> None:
        size = len(floors)
        self.rates = [rate_of(own, lengths) for own in floors]
        self.entries = [
            overhead_of(own, lengths) + mile * (lengths.once + lengths.new)
            for own, mile in zip(floors, ground.miles, strict=True)
        ]
        self.options: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        self.rest: list[dict[int, float]] = [{} for _ in range(size)]
        once, prompt, new = lengths
        leaving = [
            mile * (once + new) + sent * (prompt + new)
            for mile, sent in zip(ground.miles, ground.sent, strict=True)
        ]
        so_far = [INFINITE] * size
        for cut in sorted({0, *ground.cuts, ground.num_layers}, reverse=True):
            covering = ground.covering.get(cut, [])
            for i in covering:
                self.rest[i][cut] = so_far[i]
            if cut == ground.num_layers:
                for i in ground.ending.get(cut, ()):
                    tail = _tail(ground, i, floors[i], lengths, home)
                    self.options[i].append((cut, tail))
                    so_far[i] = self.rates[i] * cut + tail
                continue
            for givers, takers in (
                (ground.ending.get(cut, []), covering),
                (ground.inner.get(cut, []), ground.starting.get(cut, [])),
            ):
                if not takers:
                    continue
                onward = self._onward(ground, cut, so_far, givers, takers, once + new)
                for i in givers:
                    tail = leaving[i] + onward[ground.regions[i]]
                    self.options[i].append((cut, tail))
                    total = self.rates[i] * cut + tail
                    if total < so_far[i]:
                        so_far[i] = total

    def _onward(
        self,
        ground: Ground,
        cut: int,
        so_far: Sequence[float],
        givers: Sequence[int],
        takers: Sequence[int],
        trips: float,
    ) -> dict[int, float]:
        """By region of who hands over: the least of any taker's rest."""
        entered: dict[int, float] = {}
        regions, rates, entries = ground.regions, self.rates, self.entries
        for k in takers:
            low = so_far[k] + entries[k] - cut * rates[k]
            if low < entered.get(regions[k], INFINITE):
                entered[regions[k]] = low
        found: dict[int, float] = {}
        for region in {regions[i] for i in givers}:
            halves = ground.half_ms(region)
            found[region] = min(
                [low + halves[other] * trips for other, low in entered.items()], default=INFINITE
            )
        return found


def rate_of(own: Figures, lengths: Lengths) -> float:
    """What a layer takes."""
    once, prompt, new = lengths
    return own.once_ms * once + own.prompt_ms * prompt + own.new_ms * new


def overhead_of(own: Figures, lengths: Lengths) -> float:
    """What steps and chunks take beside their layers."""
    once, prompt, new = lengths
    return own.overhead_ms * (once + prompt / PREFILL_CHUNK_TOKENS + new)


def _tail(ground: Ground, i: int, own: Figures, lengths: Lengths, home: Collection[int]) -> float:
    """The head and the shortest way back, where it cannot be the first stage as well."""
    back = 0.0
    if ground.starts[i] > 0:
        halves = ground.half_ms(ground.regions[i])
        back = ground.miles[i] + min([halves[region] for region in home], default=0.0)
    ms = ground.finish_ms(i, i, lengths.once, lengths.new)
    return ms + (own.head_ms + back) * lengths.new
