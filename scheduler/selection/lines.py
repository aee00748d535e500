"""What must still be paid at least, as sums that one look at a request's lengths adds up.

Between two mixes the bounds of `potential.py` make a line in (once, prompt tokens, new tokens). So
for each range of mixes every bound is three numbers, worked out when it is first asked for.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Final

from scheduler.selection.groups import INFINITE
from scheduler.selection.potential import Figures, Ground, Lengths, Potential

MIXES: Final = (0.0, 1.0, 4.0, 8.0, 16.0, 64.0)
"""Prompt tokens per new token."""
ONCE: Final = Lengths(1.0, 0.0, 0.0)
ENDS: Final = (*(Lengths(0.0, mix, 1.0) for mix in MIXES), Lengths(0.0, 1.0, 0.0))
"""Of the ranges: the mixes, a prompt alone."""

Line = tuple[float, float, float]
"""Once, per prompt token, per new token."""

Taker = tuple[float, float, float, int, float]
"""A line, the node that goes on, and what the hop to it takes in ms."""

Option = tuple[float, float, float, int, list[Taker]]
"""A line, the boundary where a node hands over, and who may go on there: as long as it is empty,
`Lines.takers` fills it."""

First = tuple[float, float, float, float, int, "Lines"]
"""The least of a first node's line in its range, the line, the node, and what bounds chains that
begin with it."""


class Lines:
    """Bounds in one range, for chains that begin in one of the regions `home`."""

    def __init__(self, known: "Potentials", place: int, home: Collection[int]) -> None:
        self._ground = ground = known.ground
        self._once = known.of(ONCE, home)
        self._low, self._high = known.of(ENDS[place], home), known.of(ENDS[place + 1], home)
        self._mix = MIXES[place]
        self._width = MIXES[place + 1] - MIXES[place] if place + 1 < len(MIXES) else None
        self._takers: dict[tuple[int, int, bool], list[Taker]] = {}
        self._options: list[list[Option] | None] = [None] * len(ground.starts)
        starting = [i for i in ground.starting[0] if ground.regions[i] in home]
        self.firsts = [(*line, i) for i in starting if (line := self._first(i)) is not None]

    def options(self, i: int) -> list[Option]:
        """Where node i may hand over to others, the last boundary first, and what follows from
        there on: its way out and all that is behind it."""
        known, num_layers = self._options[i], self._ground.num_layers
        if known is None:
            known = self._options[i] = [
                (*line, cut, self._takers.setdefault(self._key(i, cut), []))
                for (cut, one), (_, low), (_, high) in zip(
                    self._once.options[i], self._low.options[i], self._high.options[i], strict=True
                )
                if cut < num_layers and (line := self._line((one, low, high))) is not None
            ]
        return known

    def takers(self, i: int, cut: int) -> list[Taker]:
        """Who may go on at `cut` from node i, and the least of the hop and all that follows:
        whoever holds the layer behind it where its span ends, elsewhere whoever begins there."""
        ground = self._ground
        region, _, is_end = key = self._key(i, cut)
        known = self._takers[key]
        if not known:
            half_ms = ground.half_ms(region)
            for k in ground.covering[cut] if is_end else ground.starting[cut]:
                half = half_ms[ground.regions[k]]
                line = self._entered(k, cut, half, half)
                if line is not None:
                    known.append((*line, k, half + ground.miles[k]))
        return known

    def _key(self, i: int, cut: int) -> tuple[int, int, bool]:
        """Nodes that the same ones may take over from."""
        return self._ground.regions[i], cut, self._ground.ends[i] == cut

    def _first(self, i: int) -> Line | None:
        """A chain that begins with node i, whose mile is the way back's end where it goes on."""
        ground = self._ground
        back = ground.miles[i] if ground.ends[i] < ground.num_layers else 0.0
        begins = (ground.begin_ms[i] - ground.miles[i], back - ground.miles[i])
        return self._entered(i, 0, *begins)

    def _entered(self, k: int, cut: int, once_ms: float, new_ms: float) -> Line | None:
        """Node k runs from `cut` on, got at for so much once and per new token."""
        once, low, high = (
            own.rest[k][cut] - cut * own.rates[k] + own.entries[k]
            for own in (self._once, self._low, self._high)
        )
        is_new = 1.0 if self._width is not None else 0.0
        return self._line((once + once_ms, low + new_ms, high + new_ms * is_new))

    def _line(self, lows: tuple[float, float, float]) -> Line | None:
        """Through the bounds at both ends; None where nothing leads on."""
        once, low, high = lows
        if INFINITE in lows:
            return None
        # Beyond the last mix comes the prompt alone.
        rise = (high - low) / self._width if self._width is not None else high
        return (once, rise, low - self._mix * rise)


class Potentials:
    """Those of a ground, worked out when they are first asked for."""

    def __init__(self, ground: Ground, floors: Sequence[Figures]) -> None:
        self.ground = ground
        self._floors = tuple(floors)
        self._potentials: dict[tuple[Lengths, Collection[int]], Potential] = {}
        self._firsts: dict[int, list[First]] = {}

    def of(self, lengths: Lengths, home: Collection[int]) -> Potential:
        """For so many tokens and chains that begin in `home`."""
        known = self._potentials.get((lengths, home))
        if known is None:
            known = Potential(self.ground, self._floors, lengths, home)
            self._potentials[lengths, home] = known
        return known

    def is_prepared(self, mix: float) -> bool:
        """Whether what `firsts` needs of potentials is there."""
        return self._missing(mix) is None

    def prepare(self, mix: float) -> bool:
        """Work out one of them. False: nothing is missing."""
        missing = self._missing(mix)
        if missing is not None:
            self.of(*missing)
        return missing is not None

    def _missing(self, mix: float) -> tuple[Lengths, Collection[int]] | None:
        place = bisect_right(MIXES, mix) - 1
        if place in self._firsts:
            return None
        needed = (ONCE, ENDS[place], ENDS[place + 1])
        pairs = ((lengths, home) for home in self.ground.homes for lengths in needed)
        return next((pair for pair in pairs if pair not in self._potentials), None)

    def firsts(self, mix: float) -> list[First]:
        """Where chains may begin, for requests of `mix` prompt tokens per new one; those first that
        may cost least."""
        place = bisect_right(MIXES, mix) - 1
        known = self._firsts.get(place)
        if known is None:
            all_lines = [Lines(self, place, home) for home in self.ground.homes]
            known = [
                (per_new + MIXES[place] * per_prompt, once, per_prompt, per_new, i, lines)
                for lines in all_lines
                for once, per_prompt, per_new, i in lines.firsts
            ]
            known.sort(key=itemgetter(0))
            self._firsts[place] = known
        return known
