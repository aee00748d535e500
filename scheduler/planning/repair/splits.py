"""Exact chains for chosen groups: the quickest split, and those that move less."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from scheduler.planning.assign import Chain, finish
from scheduler.planning.ground import Ground
from scheduler.planning.patterns import pad
from scheduler.planning.price import FINE, caps, most_sequences, rates, roles
from scheduler.planning.repair.ledger import Ledger
from scheduler.planning.table import Table

KV_SHARES: Final = (1.0, 0.85, 0.7, 0.5, 0.3, 0.0)
"""Shares of the most sequences that a chain could have, for which splits that move little are
tried: a node that keeps more layers leaves less room for KV."""

CALM_SHARE: Final = 0.97
"""What a chain that moves fewer nodes must be worth of the best."""
ALL_ORDERS_MAX: Final = 4
"""Where nothing serves any more, all orders of chains up to this long are tried."""

Group = tuple[int, ...]


def chains_of(ledger: Ledger, groups: Sequence[Group]) -> list[tuple[Chain | None, Chain | None]]:
    """The chain of each group that is worth most after its moves, and one that is worth nearly as
    much and changes fewest nodes; None where it carries nothing."""
    ground, table, costs, held = ledger.ground, ledger.table, ledger.costs, ledger.held
    total_per_s, tpot_s_max = ledger.total_per_s, ledger.tpot_s_max
    rows: list[Group] = []
    splits: list[tuple[int, ...]] = []
    owner: list[int] = []
    for at, chain in enumerate(finish(ground, table, groups, tpot_s_max=tpot_s_max)):
        if chain is not None:
            rows.append(chain.members)
            splits.append(chain.counts)
            owner.append(at)
    for at, group in enumerate(groups):
        for order in _standing_orders(group, held, is_full=not ledger.chains):
            for counts in _kept(ground, table, held, order):
                rows.append(order)
                splits.append(counts)
                owner.append(at)
    if not rows:
        return [(None, None)] * len(groups)
    width = max(len(row) for row in rows)
    array = pad(table, rows, width)
    counts_array = np.zeros_like(array)
    for row, counts in enumerate(splits):
        counts_array[row, : len(counts)] = counts
    rate, tpot = rates(table, array, counts_array, tpot_s_max=tpot_s_max, halvings=FINE)
    value = rate - costs.price(array, counts_array, total_per_s)
    num_changed = costs.changed(array, counts_array).sum(axis=1)
    best: dict[int, int] = {}
    calm: dict[int, int] = {}
    for row, at in enumerate(owner):
        if rate[row] <= 0.0 or value[row] == -math.inf:
            continue
        if at not in best or value[row] > value[best[at]] + 1e-9:
            best[at] = row
    for row, at in enumerate(owner):
        if at in best and value[row] >= CALM_SHARE * value[best[at]]:
            key = (num_changed[row], -value[row])
            if at not in calm or key < (num_changed[calm[at]], -value[calm[at]]):
                calm[at] = row

    def made(row: int | None) -> Chain | None:
        if row is None:
            return None
        return Chain(rows[row], splits[row], float(rate[row]), float(tpot[row]))

    return [(made(best.get(at)), made(calm.get(at))) for at in range(len(groups))]


def _standing_orders(
    group: Group, held: Mapping[int, tuple[int, int]], *, is_full: bool
) -> list[Group]:
    """Members as they stand; newcomers together, at each place among them. All orders of a few."""
    if is_full and len(group) <= ALL_ORDERS_MAX:
        return list(itertools.permutations(group))
    standing = sorted((i for i in group if i in held), key=lambda i: (held[i], i))
    fresh = sorted(i for i in group if i not in held)
    if not fresh:
        return [tuple(standing)]
    places = range(len(standing) + 1)
    return [(*standing[:at], *fresh, *standing[at:]) for at in places]


def _kept(
    ground: Ground, table: Table, held: Mapping[int, tuple[int, int]], order: Group
) -> list[tuple[int, ...]]:
    """Splits along `order` that keep as many layers where they are as fit beside some KV."""
    array = np.array([order], dtype=np.int64)
    role = roles(table, array)
    most = int(most_sequences(table, array, role)[0])
    wanted = np.maximum(1, (most * np.array(KV_SHARES)).astype(np.int64))
    rows = np.repeat(array, len(wanted), axis=0)
    fits = caps(table, rows, roles(table, rows), wanted)
    spans = [held.get(index) for index in order]
    found: dict[tuple[int, ...], None] = {}
    for limits in dict.fromkeys(map(tuple, fits.tolist())) if most else ():
        for same_layers in (0, ground.num_layers):
            counts = fewest_moves(ground.num_layers, limits, spans, same_layers=same_layers)
            if counts is not None:
                found[counts] = None
    return list(found)


def fewest_moves(
    num_layers: int,
    most: Sequence[int],
    held: Sequence[tuple[int, int] | None],
    *,
    same_layers: int = 0,
) -> tuple[int, ...] | None:
    """Layers of each stage in order, at least one and at most `most` each, such that as few as
    possible are new where they lie; None where they do not fit. A stage that keeps its span as it
    is counts as so many layers more. Exact: a shortest path over boundaries."""
    boundary = np.arange(num_layers + 1)
    start, end = boundary[:, None], boundary[None, :]
    kept = np.full(num_layers + 1, -np.inf)
    kept[0] = 0.0
    came: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
    for limit, span in zip(most, held, strict=True):
        size = end - start
        gain = np.where((size >= 1) & (size <= limit), 0.0, -np.inf)
        if span is not None:
            overlap = np.minimum(end, span[1]) - np.maximum(start, span[0])
            gain = gain + np.maximum(overlap, 0)
            gain[span] += same_layers
        total = kept[:, None] + gain
        came.append(np.asarray(total.argmax(axis=0), dtype=np.int64))
        kept = total.max(axis=0)
    if not np.isfinite(kept[num_layers]):
        return None
    counts: list[int] = []
    at = num_layers
    for previous in reversed(came):
        before = int(previous[at])
        counts.append(at - before)
        at = before
    return tuple(reversed(counts))
