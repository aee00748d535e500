"""The best split of a chain, exactly.

At rate X a stage of k layers takes g(k) seconds; g is convex, since its batch grows with its step.
Among all splits of L layers the shortest trip therefore takes, layer by layer, whatever costs least
next (marginal analysis; Fox, 1966). For each number C of sequences the stages' KV caps k, and X is
carried if X * trip <= C for some C.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.planning.price import FINE, rates
from scheduler.planning.table import Floats, Ints, Table

NEVER: Final = 1e18
"""Seconds of a step that cannot keep up."""
EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Rows:
    """Chains of the same machines, at least one: `order` (rows, stages), round trips halved and
    summed up, and seconds that a token's activation takes on the link behind each stage, 0 behind
    the last."""

    order: Ints
    hops_s: Floats  # (rows,)
    link_s: Floats  # (rows, stages)

    def at(self, index: Ints) -> "Rows":
        """Some of them."""
        return Rows(self.order[index], self.hops_s[index], self.link_s[index])


@dataclass(frozen=True, slots=True)
class Split:
    """A chain with its layers, tokens/s, and seconds per token alone."""

    order: tuple[int, ...]
    counts: tuple[int, ...]
    rate: float
    tpot_s: float


def step_table(table: Table, rate: float, *, is_last: bool) -> Floats:
    """Seconds of a step over k = 0..L layers of each machine, (machines, L + 1), at `rate`."""
    layers = np.arange(table.num_layers + 1)[None, :]
    head_c = table.head_compute if is_last else np.zeros_like(table.overhead)
    head_r = table.head_read if is_last else np.zeros_like(table.overhead)
    flat = table.overhead[:, None]
    lines = [
        (flat + layers * table.sync[:, None], layers * table.compute[:, None]),
        (flat + layers * table.read[:, None], layers * table.per_sequence[:, None]),
    ]
    zero = np.zeros_like(flat)
    heads = [(zero, head_c[:, None]), (head_r[:, None], zero)]
    step = np.zeros((len(table.overhead), table.num_layers + 1))
    for start, slope in lines:
        for head_start, head_slope in heads:
            whole, each = start + head_start, slope + head_slope
            room = 1.0 - rate * each
            with np.errstate(divide="ignore", invalid="ignore"):
                loaded = np.where(room > 0.0, whole / np.maximum(room, 1e-12), NEVER)
            step = np.maximum(step, np.maximum(whole + each, loaded))
    return np.where(rate * step > table.batch_max * (1.0 + EPSILON), NEVER, step)


class Splitter:
    """Finds the best split of chains of one ground."""

    def __init__(self, table: Table, *, tpot_s_max: float) -> None:
        self._table = table
        self._tpot_s_max = tpot_s_max
        self._held = _sequences(table)

    def best(self, rows: Rows, carried: float) -> Split | None:
        """The best of these chains and splits, if it carries more than `carried` tokens/s."""
        best: Split | None = None
        while len(rows.order):
            rate = carried * (1.0 + 1e-7) + 1e-9
            keep, row, counts = self._shortest(rows, rate)
            if row is None:
                return best
            found = self._rated(rows.order[row], counts)
            if found.rate <= rate:
                # Rounding: this chain's best split is the one that is known already.
                keep = keep[keep != row]
            else:
                best, carried = found, found.rate
            rows = rows.at(keep)
        return best

    def _rated(self, order: Ints, counts: Ints) -> Split:
        rate, alone = rates(
            self._table,
            order[None, :],
            counts[None, :],
            tpot_s_max=self._tpot_s_max,
            halvings=FINE + 8,
        )
        return Split(
            tuple(int(i) for i in order),
            tuple(int(k) for k in counts),
            float(rate[0]),
            float(alone[0]),
        )

    def _shortest(self, rows: Rows, rate: float) -> tuple[Ints, int | None, Ints]:
        """Rows that carry `rate`; the one with most to spare, and its layers."""
        # While a chain waits for a lost member it carries nothing: more is needed while it runs.
        rate *= 1.0 + float(self._table.loss[rows.order[0]].sum())
        best, pick, layers = 1.0, None, np.zeros(rows.order.shape[1], dtype=np.int64)
        is_able = np.zeros(len(rows.order), dtype=bool)
        filler = _Filler(self._table.num_layers, rows, self._costs(rows, rate))
        for num_sequences, most in self._windows(rows, rate, filler):
            trip, index, counts = filler.fill(most)
            allowed = min(num_sequences / rate, self._tpot_s_max)
            is_able[index] |= trip <= allowed
            share = trip / allowed
            at = int(share.argmin())
            if share[at] <= 1.0 and (pick is None or share[at] < best):
                best, pick, layers = float(share[at]), int(index[at]), counts[at]
        return np.flatnonzero(is_able), pick, layers

    def able(self, rows: Rows, rate: float) -> tuple[Ints, int | None]:
        """Which of these chains carry `rate` at their best split, and the one with most to
        spare."""
        keep, row, _ = self._shortest(rows, rate)
        return keep, row

    def _costs(self, rows: Rows, rate: float) -> Floats:
        """Seconds of each stage over k = 1..L layers with the link behind it, (rows, stages, L)."""
        plain = step_table(self._table, rate, is_last=False)[:, 1:]
        last = step_table(self._table, rate, is_last=True)[:, 1:]
        step = plain[rows.order]
        step[:, -1, :] = last[rows.order[:, -1]]
        cost: Floats = step + np.maximum(1.0, rate * step) * rows.link_s[:, :, None]
        busiest = rate * rows.link_s.max(axis=1)
        cost[busiest > 1.0] = NEVER
        return cost

    def _windows(self, rows: Rows, rate: float, filler: "_Filler") -> list[tuple[int, Ints]]:
        """Numbers of sequences worth a look, the most for the same caps, (rows, stages)."""
        place = np.zeros_like(rows.order)
        place[:, 0] += 1
        place[:, -1] += 2
        held = self._held[place, rows.order]  # (rows, stages, L)
        trip, _, _ = filler.fill((held >= 1).sum(axis=2))
        if not len(trip) or float(trip.min()) >= NEVER:
            return []
        least = max(1, math.ceil(rate * float(trip.min()) - 1e-6))
        found: list[tuple[int, Ints]] = []
        for num_sequences in np.unique(held[held >= least]):
            most = (held >= num_sequences).sum(axis=2)
            if not ((most >= 1).all(axis=1) & (most.sum(axis=1) >= self._table.num_layers)).any():
                break
            if found and np.array_equal(found[-1][1], most):
                found.pop()
            found.append((int(num_sequences), most))
        return found


def _sequences(table: Table) -> Ints:
    """Sequences whose KV fits beside k = 1..L layers, (roles, machines, L)."""
    layers = np.arange(1, table.num_layers + 1)[None, :]
    ends = np.stack([np.zeros_like(table.first), table.first, table.last, table.both])
    left = table.room[None, :, None] - ends[:, :, None] - layers * table.layer[None, :, None]
    own = np.broadcast_to(table.kv[None, :, None], left.shape)
    kv = layers * table.kv_sequence[:, None]
    held = np.floor(np.where(np.isnan(own), left, own) / kv[None])
    return np.where(left < 0.0, 0.0, np.maximum(held, 0.0)).astype(np.int64)


class _Filler:
    """Gives layers to stages, the cheapest next one first."""

    def __init__(self, num_layers: int, rows: Rows, costs: Floats) -> None:
        self._num_layers = num_layers
        self._hops_s = rows.hops_s
        self._costs = costs
        # A stage that cannot keep up stays so: beyond, no layer is cheap again.
        more = np.maximum.accumulate(np.diff(costs, axis=2), axis=2)
        more = more.reshape(len(costs), -1)  # (rows, stages * (L - 1))
        ranked = np.argsort(more, axis=1, kind="stable")
        self._owner = ranked // max(1, num_layers - 1)
        self._layer = ranked % max(1, num_layers - 1) + 2

    def fill(self, most: Ints) -> tuple[Floats, Ints, Ints]:
        """The shortest trip of every row that fits, its index, and its layers."""
        stages = most.shape[1]
        index = np.flatnonzero((most >= 1).all(axis=1) & (most.sum(axis=1) >= self._num_layers))
        owner, cost, cap = self._owner[index], self._costs[index], most[index]
        is_free = self._layer[index] <= np.take_along_axis(cap, owner, axis=1)
        is_taken = is_free & (np.cumsum(is_free, axis=1) <= self._num_layers - stages)
        layers = np.stack([(is_taken & (owner == i)).sum(axis=1) for i in range(stages)], axis=1)
        layers = layers.astype(np.int64) + 1
        taken = np.take_along_axis(cost, layers[:, :, None] - 1, axis=2)[:, :, 0]
        return self._hops_s[index] + taken.sum(axis=1), index, layers
