"""An idle machine in a lost one's place: nobody else moves."""

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from scheduler.planning.assign import Chain
from scheduler.planning.patterns import pad
from scheduler.planning.price import FINE, rates
from scheduler.planning.repair.ledger import Ledger

Group = tuple[int, ...]
ENOUGH: Final = 0.95
"""A spare is as good as what was lost where the chain keeps this share of its rate."""
PAIRED_MAX: Final = 6
"""Idle machines up to this many are also tried in pairs."""
ALONE_MAX: Final = 64

Filled = tuple[Group, tuple[int, ...]]


def fill_with_spares(ledger: Ledger, survivors: Group, planned_per_s: float) -> bool:
    """Put the best fitting idle machine, or two, where layers are missing. False, and nothing
    done, where the chain would carry clearly less than before."""
    spares = sorted(ledger.idle - set(survivors))
    for rows in (
        list(_singles(ledger, survivors, spares)),
        list(_doubles(ledger, survivors, spares)),
    ):
        if not rows:
            continue
        array = pad(ledger.table, [members for members, _ in rows], len(rows[0][0]))
        counts = np.array([counts for _, counts in rows], dtype=np.int64)
        rate, tpot = rates(ledger.table, array, counts, tpot_s_max=ledger.tpot_s_max, halvings=FINE)
        value = rate - ledger.costs.price(array, counts, ledger.total_per_s)
        at = int(np.argmax(value))
        if rate[at] > 0.0 and rate[at] >= ENOUGH * planned_per_s:
            chain = Chain(*rows[at], float(rate[at]), float(tpot[at]))
            ledger.apply((), (chain,))
            return True
    return False


def _gaps(ledger: Ledger, survivors: Group) -> list[tuple[int, tuple[int, int]]]:
    """(place among the survivors, missing layers), in order."""
    gaps: list[tuple[int, tuple[int, int]]] = []
    at = 0
    for place, index in enumerate(survivors):
        start, end = ledger.held[index]
        if start > at:
            gaps.append((place, (at, start)))
        at = end
    if at < ledger.ground.num_layers:
        gaps.append((len(survivors), (at, ledger.ground.num_layers)))
    return gaps


def _singles(ledger: Ledger, survivors: Group, spares: list[int]) -> Iterator[Filled]:
    gaps = _gaps(ledger, survivors)
    if len(gaps) != 1:
        return
    place, (start, end) = gaps[0]
    for spare in spares[:ALONE_MAX]:
        yield _filled(ledger, survivors, place, ((spare, end - start),))


def _doubles(ledger: Ledger, survivors: Group, spares: list[int]) -> Iterator[Filled]:
    gaps = _gaps(ledger, survivors)
    if len(spares) > PAIRED_MAX:
        spares = spares[:PAIRED_MAX]
    if len(gaps) == 1:
        place, (start, end) = gaps[0]
        for one, two in itertools.permutations(spares, 2):
            for count in range(1, end - start):
                yield _filled(ledger, survivors, place, ((one, count), (two, end - start - count)))
    elif len(gaps) == 2:
        (place, (start, end)), (second, (low, high)) = gaps
        for one, two in itertools.permutations(spares, 2):
            members, counts = _filled(ledger, survivors, second, ((two, high - low),))
            yield (
                (*members[:place], one, *members[place:]),
                (*counts[:place], end - start, *counts[place:]),
            )


def _filled(
    ledger: Ledger, survivors: Group, place: int, fresh: tuple[tuple[int, int], ...]
) -> Filled:
    held = [ledger.held[i] for i in survivors]
    counts = [end - start for start, end in held]
    members = (*survivors[:place], *(i for i, _ in fresh), *survivors[place:])
    return members, (*counts[:place], *(k for _, k in fresh), *counts[place:])
