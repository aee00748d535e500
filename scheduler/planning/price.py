"""Prices many chains at once: the best split of each, and the rate it carries.

Arrays are (chains, stages): machines in order, `table.none` after the last stage.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.planning.table import Flags, Floats, Ints, Table

ROUGH: Final = 12
FINE: Final = 36
"""Halvings of the rate's interval."""


@dataclass(frozen=True, slots=True)
class Priced:
    """Per chain: tokens/s, seconds per token of a single sequence, and layers, (chains, stages)."""

    rate: Floats
    tpot: Floats
    counts: Ints


@dataclass(frozen=True, slots=True)
class _Roles:
    is_stage: Flags
    is_first: Flags
    is_last: Flags
    room: Floats
    """Bytes for layers, after what the ends hold."""


def roles(table: Table, order: Ints) -> _Roles:
    """Who is first and last, and what they have left for layers."""
    is_stage = order != table.none
    size = is_stage.sum(axis=1)
    at = np.arange(order.shape[1])[None, :]
    is_first = np.broadcast_to(at == 0, order.shape)
    is_last = at == size[:, None] - 1
    ends = np.where(is_first & is_last, table.both[order], 0.0)
    ends += np.where(is_first & ~is_last, table.first[order], 0.0)
    ends += np.where(is_last & ~is_first, table.last[order], 0.0)
    return _Roles(is_stage, is_first, is_last, table.room[order] - ends)


def caps(table: Table, order: Ints, role: _Roles, num_sequences: Ints) -> Ints:
    """Layers that fit beside the KV of `num_sequences` (chains,) on each stage."""
    kv = num_sequences[:, None] * table.kv_sequence[order]
    own = table.kv[order]
    is_shared = np.isnan(own)
    per_layer = table.layer[order] + np.where(is_shared, kv, 0.0)
    most = np.floor(np.maximum(role.room, 0.0) / per_layer)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(is_shared, most, np.minimum(most, np.floor(own / kv)))
    return np.where(role.is_stage, np.minimum(most, table.num_layers), 0).astype(np.int64)


def slots(table: Table, order: Ints, counts: Ints, role: _Roles) -> Ints:
    """Sequences that the scarcest stage's KV holds, (chains,); 0 where layers do not fit."""
    kv = np.maximum(counts, 1) * table.kv_sequence[order]
    own = table.kv[order]
    left = role.room - counts * table.layer[order]
    held = np.floor(np.where(np.isnan(own), left, own) / kv)
    held = np.where(left < 0.0, 0.0, held)
    held = np.where(role.is_stage & (counts < 1), 0.0, held)
    least: Floats = np.where(role.is_stage, held, 1e9).min(axis=1)
    return least.astype(np.int64)


def rates(
    table: Table, order: Ints, counts: Ints, *, tpot_s_max: float, halvings: int
) -> tuple[Floats, Floats]:
    """Tokens/s over all the time and seconds per token alone, (chains,) each; rate 0 where it does
    not fit."""
    role = roles(table, order)
    held = slots(table, order, counts, role)
    hops, links = _hops(table, order, role)
    per_link = np.where(np.isfinite(links), table.activation_bytes / links, 0.0)
    flat = table.overhead[order] + np.where(role.is_last, table.head_read[order], 0.0)
    lines = [
        (flat + counts * table.sync[order], counts * table.compute[order]),
        (flat + counts * table.read[order], counts * table.per_sequence[order]),
    ]
    rows = np.arange(len(order))
    end = np.argmax(role.is_last, axis=1)
    tail = order[rows, end]
    head = table.head_compute[tail]
    base = table.overhead[tail]
    tail_counts = counts[rows, end]
    head_lines = [
        (base + tail_counts * table.sync[tail], tail_counts * table.compute[tail] + head),
        (base + tail_counts * table.read[tail], tail_counts * table.per_sequence[tail] + head),
    ]

    def steps(batch: float) -> Floats:
        step = np.maximum(lines[0][0] + lines[0][1] * batch, lines[1][0] + lines[1][1] * batch)
        ends = np.maximum(
            head_lines[0][0] + head_lines[0][1] * batch, head_lines[1][0] + head_lines[1][1] * batch
        )
        step[rows, end] = np.maximum(step[rows, end], ends)
        return np.where(role.is_stage, step, 0.0)

    alone = steps(1.0)
    single = hops + alone.sum(axis=1) + per_link.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ceiling = (table.batch_max / np.maximum(steps(table.batch_max), 1e-12).max(axis=1)) * 1.0
        ceiling = np.minimum(ceiling, 1.0 / per_link.max(axis=1))
    starts, slopes = np.zeros((2, 5, *order.shape))
    for i, (start, slope) in enumerate(lines):
        starts[i] = np.where(role.is_stage, start, 0.0)
        slopes[i] = np.where(role.is_stage, slope, 0.0)
    for i, (start, slope) in enumerate(head_lines, 2):
        starts[i, rows, end], slopes[i, rows, end] = start, slope
    starts[4] = alone
    ring = _Ring(starts, slopes, hops, per_link)
    low = ring.most_rate(held, np.where(held > 0, ceiling, 0.0), tpot_s_max, halvings)
    return low / (1.0 + table.loss[order].sum(axis=1)), single


@dataclass(frozen=True, slots=True)
class _Ring:
    """What trips round many chains take. A stage's step is the longest of its lines, (lines,
    chains, stages): start + slope * batch, one of them with no slope."""

    starts: Floats
    slopes: Floats
    hops: Floats
    per_link: Floats

    def most_rate(self, held: Ints, ceiling: Floats, tpot_s_max: float, halvings: int) -> Floats:
        """The largest rate up to `ceiling` at which `held` sequences are under way, (chains,)."""
        low, high, work = np.zeros(len(held)), ceiling, np.empty_like(self.starts)
        with np.errstate(divide="ignore", invalid="ignore"):
            for _ in range(halvings):
                rate = (low + high) / 2
                trip = self._trip_s(rate, work)
                fits = (rate * trip <= held) & (trip <= tpot_s_max)
                low, high = np.where(fits, rate, low), np.where(fits, high, rate)
        return low

    def _trip_s(self, rate: Floats, work: Floats) -> Floats:
        """Where batches are what comes while a step runs. Arrays are small and looked at often:
        nothing is allocated that need not be."""
        column = rate[:, None]
        np.multiply(self.slopes, column, out=work)
        np.subtract(1.0, work, out=work)
        np.maximum(work, 1e-9, out=work)
        np.divide(self.starts, work, out=work)
        step = np.maximum.reduce(work, axis=0)
        links: Floats = np.multiply(step, column)
        np.maximum(links, 1.0, out=links)
        np.multiply(links, self.per_link, out=links)
        trip: Floats = self.hops + np.add.reduce(step, axis=1) + np.add.reduce(links, axis=1)
        return trip


def _hops(table: Table, order: Ints, role: _Roles) -> tuple[Floats, Floats]:
    """Half round trips round the ring (chains,), and bandwidth after each stage."""
    behind = np.full_like(order, table.none)
    behind[:, :-1] = order[:, 1:]
    has_next = behind != table.none
    following = np.where(has_next, behind, order[:, :1])
    is_alone = role.is_stage.sum(axis=1) == 1
    trip = table.rtt_s[table.region[order], table.region[following]]
    trip = trip + table.last_mile_s[order] + table.last_mile_s[following]
    trip = np.where(role.is_stage, trip, 0.0).sum(axis=1) / 2
    links = np.where(has_next, np.minimum(table.up[order], table.down[following]), np.inf)
    return np.where(is_alone, 0.0, trip), links


def fill(table: Table, order: Ints, role: _Roles, most: Ints) -> Ints:
    """Layers for each stage: one, then as many as fit, the fastest per layer first."""
    compute_s = table.sync[order] + table.compute[order]
    layer_s = np.maximum(compute_s, table.read[order] + table.per_sequence[order])
    rank = np.argsort(np.where(role.is_stage, layer_s, np.inf), axis=1, kind="stable")
    size = role.is_stage.sum(axis=1)
    extra = np.take_along_axis(np.maximum(most - 1, 0), rank, axis=1)
    left = (table.num_layers - size)[:, None]
    before = np.cumsum(extra, axis=1) - extra
    taken = np.clip(left - before, 0, extra)
    counts = np.zeros_like(order)
    np.put_along_axis(counts, rank, taken, axis=1)
    return np.where(role.is_stage, counts + 1, 0)


def most_sequences(table: Table, order: Ints, role: _Roles) -> Ints:
    """The most sequences any split leaves KV for, (chains,); 0 where the layers do not fit."""
    size = role.is_stage.sum(axis=1)

    def fits(num_sequences: Ints) -> Flags:
        most = caps(table, order, role, num_sequences)
        is_held = np.asarray((~role.is_stage | (most >= 1)).all(axis=1))
        is_whole = most.sum(axis=1) >= table.num_layers
        return np.asarray(is_held & is_whole & (size <= table.num_layers))

    low = np.zeros(len(order), dtype=np.int64)
    high = np.full(len(order), 4096, dtype=np.int64)
    for _ in range(13):
        middle = (low + high) // 2
        is_good = fits(np.maximum(middle, 1)) & (middle > 0)
        low = np.where(is_good, middle, low)
        high = np.where(is_good, high, middle)
    return np.where((low == 0) & fits(np.ones_like(low)), 1, low)


def price(
    table: Table,
    order: Ints,
    *,
    tpot_s_max: float = np.inf,
    grid: int = 8,
    halvings: int = ROUGH,
) -> Priced:
    """The best of `grid` splits of each chain: for so many sequences' KV, the fastest stages
    take all they can."""
    count, width = order.shape
    best = Priced(np.zeros(count), np.full(count, np.inf), np.zeros_like(order))
    if not count:
        return best
    role = roles(table, order)
    most = most_sequences(table, order, role)
    usable = np.flatnonzero(most > 0)
    if not len(usable):
        return best
    chains, top = order[usable], most[usable]
    wanted = _grid(top, grid)  # (usable, grid)
    flat = np.repeat(chains, wanted.shape[1], axis=0)
    flat_role = roles(table, flat)
    split = fill(table, flat, flat_role, caps(table, flat, flat_role, wanted.reshape(-1)))
    rate, tpot = rates(table, flat, split, tpot_s_max=tpot_s_max, halvings=halvings)
    shape = (len(usable), wanted.shape[1])
    pick = rate.reshape(shape).argmax(axis=1)
    rows = np.arange(len(usable))
    best.rate[usable] = rate.reshape(shape)[rows, pick]
    best.tpot[usable] = tpot.reshape(shape)[rows, pick]
    best.counts[usable] = split.reshape(*shape, width)[rows, pick]
    return best


def _grid(top: Ints, size: int) -> Ints:
    """From all down to one, denser near all: throughput is there."""
    steps = np.linspace(0.0, 1.0, size) ** 1.5
    return np.maximum(1, np.round(top[:, None] * (1.0 - steps[None, :] * 0.9))).astype(np.int64)


def polish(
    table: Table, order: Ints, priced: Priced, *, tpot_s_max: float = np.inf, rounds: int = 8
) -> Priced:
    """Move single layers between stages while that helps."""
    counts, rate, tpot = priced.counts.copy(), priced.rate.copy(), priced.tpot.copy()
    width = order.shape[1]
    moves = [(i, j) for i in range(width) for j in range(width) if i != j]
    active = np.flatnonzero((rate > 0.0) & ((order != table.none).sum(axis=1) > 1))
    shift = np.zeros((len(moves), width), dtype=np.int64)
    for at, (i, j) in enumerate(moves):
        shift[at, i], shift[at, j] = -1, 1
    for _ in range(rounds):
        if not len(active) or not moves:
            break
        tried = (counts[active][:, None, :] + shift[None, :, :]).reshape(-1, width)
        chains = np.repeat(order[active], len(moves), axis=0)
        is_stage = chains != table.none
        is_sane = np.where(is_stage, tried >= 1, tried == 0).all(axis=1)
        role = roles(table, chains)
        is_sane &= slots(table, chains, tried, role) > 0
        found = np.zeros(len(tried))
        alone = np.full(len(tried), np.inf)
        found[is_sane], alone[is_sane] = rates(
            table, chains[is_sane], tried[is_sane], tpot_s_max=tpot_s_max, halvings=24
        )
        shape = (len(active), len(moves))
        pick = found.reshape(shape).argmax(axis=1)
        rows = np.arange(len(active))
        better = found.reshape(shape)[rows, pick]
        is_better = better > rate[active] * (1.0 + 1e-6)
        moved = active[is_better]
        rate[moved] = better[is_better]
        tpot[moved] = alone.reshape(shape)[rows, pick][is_better]
        counts[moved] = tried.reshape(*shape, width)[rows, pick][is_better]
        active = moved
    return Priced(rate, tpot, counts)
