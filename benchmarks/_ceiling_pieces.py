"""The most that a replica of so many machines of each kind carries, as lines over its hops.

A chain with seconds H of hops and first links carries X >= x only if some number C of sequences
has H <= C / X - A_C(x): A_C(x) are the least seconds of its stages at rate x when each holds no
more layers than its KV has room for. So, between two levels x < y of rates, X is at most the chord
x + b * (H_x - H), with H_z = max_C (C / z - A_C(x)): C / (A + H) is convex in H. What is left out
only makes it larger: downlinks, who holds embeddings beside which layers, link ceilings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.planning.ground import Ground, Machine
from scheduler.planning.splits import NEVER, step_table
from scheduler.planning.table import Flags, Floats, Ints, make_table

LEVEL: Final = 1.06
"""Ratio of neighbouring levels of rates."""
EXACT_SEQUENCES: Final = 64
"""Up to so many sequences each number is told apart."""
SEQUENCES_STEP: Final = 1.02
SLOPES: Final = 20
GROUPS: Final = (0.0, 0.6, 0.85)
"""Shares of the most sequences from which a piece's batches are bounded."""
BATCHES: Final = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0)
"""Batches on links are rounded down to these."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Machines that differ in nothing but their links and their place."""

    machine: Machine
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Per piece: `mix` (pieces, kinds) machines of each kind; a chain of it with rate above `low`
    carries at most `low + slope * (hops_s_max - H)` tokens/s, and not above `high`. `batch`
    indexes BATCHES by kind: what a link behind a stage carries at least."""

    mix: Ints
    low: Floats
    high: Floats
    slope: Floats
    hops_s_max: Floats
    hops_s_min: Floats
    batch: Ints

    def at(self, index: Ints | Flags) -> "Pieces":
        """Some of them."""
        return Pieces(
            self.mix[index],
            self.low[index],
            self.high[index],
            self.slope[index],
            self.hops_s_max[index],
            self.hops_s_min[index],
            self.batch[index],
        )


def kinds_of(ground: Ground) -> list[Kind]:
    """Machines by what they hold and how fast they are."""
    groups: dict[Machine, list[int]] = {}
    for index, machine in enumerate(ground.machines):
        plain = replace(
            machine,
            node_id="",
            kind="",
            region=0,
            last_mile_s=0.0,
            up_bytes_per_s=math.inf,
            down_bytes_per_s=math.inf,
            loss=0.0,
        )
        groups.setdefault(plain, []).append(index)
    return [Kind(machine, tuple(members)) for machine, members in groups.items()]


def mixes(kinds: Sequence[Kind], machines_max: int) -> Ints:
    """Every number of machines of each kind, `machines_max` in all at most, (mixes, kinds)."""
    found = np.zeros((1, 0), dtype=np.int64)
    for kind in kinds:
        counts = np.arange(min(machines_max, len(kind.members)) + 1)
        left = machines_max - found.sum(axis=1)
        grown = np.repeat(found, len(counts), axis=0)
        more = np.tile(counts, len(found))
        keep = more <= np.repeat(left, len(counts))
        found = np.hstack([grown[keep], more[keep][:, None]])
    counted: Ints = found[found.sum(axis=1) >= 1]
    return counted


class Mixes:
    """Bounds of `mix` (mixes, kinds) machines of one ground with `hops_s` of hops at least. Rates
    up to `enough` (mixes,) are of no interest."""

    def __init__(
        self, ground: Ground, kinds: Sequence[Kind], mix: Ints, hops_s: Floats, enough: Floats
    ) -> None:
        self._ground = ground
        self._kinds = kinds
        self._known: dict[int, tuple[Ints, Ints]] = {}
        self._table = make_table(ground, tuple(kind.machine for kind in kinds))
        most = max(kind.machine.sequences_max(1, is_first=False, is_last=False) for kind in kinds)
        fits = []
        for first, last in _ranges(most):
            # A range is possible if its least number is.
            is_held = self._fits(mix, *self._caps(first))
            if not is_held.any():
                break
            fits.append((first, last, is_held))
        sequences = np.zeros(len(mix))
        for _, last, is_held in fits:
            sequences[is_held] = last
        kept = sequences > 0
        self.mix, self.hops_s, self.sequences = mix[kept], hops_s[kept], sequences[kept]
        self.enough = enough[kept]
        layer_s = min(kind.machine.curve.layer_s(1.0) for kind in kinds)
        self.trip_s: Floats = self.hops_s + ground.num_layers * layer_s
        """The shortest time round."""
        self._fitting = [(first, last, is_held[kept]) for first, last, is_held in fits]

    def pieces(self, low: float, high: float) -> Pieces:
        """Pieces between two levels of rates."""
        steps_s = step_table(self._table, low, is_last=False)[:-1]
        wanted = high > self.enough
        head_s = np.where(self.mix > 0, self._table.head_read[None, :-1], np.inf).min(axis=1)
        least_s = np.full(len(self.mix), np.inf)
        least_s[wanted] = self._stages_s(self.mix[wanted], steps_s, 1)
        least_s += head_s + self.hops_s
        reach = np.full((len(GROUPS), len(self.mix)), -np.inf)
        least = np.full((len(GROUPS), len(self.mix)), -np.inf)
        edges = [np.maximum(1.0, np.floor(share * self.sequences)) for share in GROUPS]
        for first, last, is_held in self._fitting:
            own = np.flatnonzero(wanted & is_held & (last >= low * least_s))
            if not len(own):
                continue
            stages_s = self._stages_s(self.mix[own], steps_s, first) + head_s[own]
            group = sum((first >= edge[own]).astype(np.int64) for edge in edges) - 1
            reach[group, own] = np.maximum(reach[group, own], last / low - stages_s)
            least[group, own] = np.maximum(least[group, own], last / high - stages_s)
        found: list[Pieces] = []
        for group, edge in enumerate(edges):
            own = np.flatnonzero(reach[group] >= self.hops_s)
            top, bottom = reach[group, own], least[group, own]
            found.append(
                Pieces(
                    self.mix[own],
                    np.full(len(own), low),
                    np.full(len(own), high),
                    (high - low) / (top - bottom),
                    top,
                    bottom,
                    self._batches(self.mix[own], edge[own], steps_s, low),
                )
            )
        return join(found)

    def _caps(self, num_sequences: int) -> tuple[Ints, Ints]:
        """Layers beside the KV of so many sequences on each kind, in the middle and at an end."""
        if num_sequences in self._known:
            return self._known[num_sequences]
        count = self._ground.num_layers
        middle = [
            k.machine.layers_max(is_first=False, is_last=False, num_sequences=num_sequences)
            for k in self._kinds
        ]
        ends = [
            max(
                k.machine.layers_max(is_first=True, is_last=False, num_sequences=num_sequences),
                k.machine.layers_max(is_first=False, is_last=True, num_sequences=num_sequences),
            )
            for k in self._kinds
        ]
        found = np.minimum(middle, count), np.minimum(ends, count)
        self._known[num_sequences] = found
        return found

    def _fits(self, mix: Ints, caps: Ints, ends: Ints) -> Flags:
        """All layers fit, with the two that lose least at the ends (one where there is one)."""
        lost = (caps - ends)[None, :]
        number = mix.sum(axis=1)
        one = np.where(mix > 0, lost, 1 << 30).min(axis=1)
        at = np.where(mix > 0, lost, 1 << 30).argmin(axis=1)
        rest = mix.copy()
        rest[np.arange(len(mix)), at] -= 1
        two = np.where(rest > 0, lost, 1 << 30).min(axis=1)
        total = mix @ caps - one - np.where(number > 1, two, 0)
        is_held: Flags = ((mix == 0) | (caps >= 1)[None, :]).all(axis=1)
        fits: Flags = is_held & (total >= self._ground.num_layers)
        return fits

    def _stages_s(self, mix: Ints, steps_s: Floats, num_sequences: int) -> Floats:
        """Seconds of all stages at least: the dual of giving every layer to a machine, (mixes,)."""
        caps, _ = self._caps(num_sequences)
        layers = np.arange(1, steps_s.shape[1])[None, :]
        cost = np.where(layers <= caps[:, None], steps_s[:, 1:], NEVER)
        finite = np.where(cost < NEVER, cost, np.nan)
        more = np.diff(finite, axis=1)
        more = more[np.isfinite(more)]
        if not len(more):
            return np.zeros(len(mix))
        more.sort()
        slopes = more[np.linspace(0, len(more) - 1, SLOPES).astype(np.int64)]
        least = (cost[:, None, :] - slopes[None, :, None] * layers[:, None, :]).min(axis=2)
        best: Floats = (
            mix.astype(np.float64) @ least + slopes[None, :] * self._ground.num_layers
        ).max(axis=1)
        return best

    def _batches(self, mix: Ints, sequences: Floats, steps_s: Floats, rate: float) -> Ints:
        """What the stages' links carry at least: a stage holds what the others have no room
        for."""
        found = np.zeros_like(mix)
        steps = np.array(BATCHES)
        for number in np.unique(sequences):
            own = np.flatnonzero(sequences == number)
            caps, _ = self._caps(int(number))
            total = mix[own] @ caps
            for kind, cap in enumerate(caps):
                held = np.clip(self._ground.num_layers - (total - cap), 1, self._ground.num_layers)
                batch = np.maximum(1.0, rate * steps_s[kind, held])
                found[own, kind] = np.searchsorted(steps, batch, side="right") - 1
        return found


def join(parts: Sequence[Pieces]) -> Pieces:
    """All of them."""
    return Pieces(
        np.concatenate([p.mix for p in parts]),
        np.concatenate([p.low for p in parts]),
        np.concatenate([p.high for p in parts]),
        np.concatenate([p.slope for p in parts]),
        np.concatenate([p.hops_s_max for p in parts]),
        np.concatenate([p.hops_s_min for p in parts]),
        np.concatenate([p.batch for p in parts]),
    )


def _ranges(most: int) -> list[tuple[int, int]]:
    """Ranges of numbers of sequences, (first, last)."""
    found: list[tuple[int, int]] = []
    first = 1
    while first <= most:
        last = first if first <= EXACT_SEQUENCES else max(first, int(first * SEQUENCES_STEP))
        found.append((first, last))
        first = last + 1
    return found
