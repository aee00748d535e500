"""A near-cheapest chain in a large pool, where the exact search would take too long.

Every stage runs to the end of its node's span, so a node is visited once, in order of span ends;
the exact search then moves the boundaries of the chain that was found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.selection.candidates import Candidate, StagePrice

LABELS_PER_CUT: Final = 2


@dataclass(slots=True)
class Label:
    """The cheapest known way to have run all layers up to the end of `index`'s span."""

    total_ms: float
    reach_ms: float
    """`total_ms` and the way back to the first stage: what labels are compared by."""
    index: int
    first: int
    before: "Label | None"

    def path(self) -> list[int]:
        """Candidates in order."""
        indices: list[int] = []
        label: Label | None = self
        while label is not None:
            indices.append(label.index)
            label = label.before
        return indices[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the search asks about hops, by candidate index."""

    start_ms: Callable[[int], float]
    hop_ms: Callable[[int, int], float]
    back_ms: Callable[[int, int], float]
    is_blocked: Callable[[int, int], bool]


def quick_path(
    candidates: Sequence[Candidate],
    prices: Sequence[StagePrice],
    num_layers: int,
    costs: Costs,
    *,
    labels_per_cut: int | None,
) -> list[int] | None:
    """Indices of a chain, or None. At each boundary the cheapest few labels are kept, all of them
    where `labels_per_cut` is None: then a chain is found whenever no hop is blocked and one exists.
    """
    at_cut: dict[int, list[Label]] = {}
    order = sorted(range(len(candidates)), key=lambda i: (candidates[i].span.end, i))
    for index in order:
        span, own = candidates[index].span, prices[index]
        best: Label | None = None
        if span.start == 0:
            total = costs.start_ms(index) + own.fixed + len(span) * own.per_layer
            best = Label(total, total, index, index, None)
        for cut, labels in at_cut.items():
            if not span.start <= cut < span.end:
                continue
            run_ms = own.fixed + (span.end - cut) * own.per_layer
            for before in labels:
                total = before.total_ms + run_ms
                # A hop only adds: skip what cannot win any more.
                if best is not None and total >= best.reach_ms:
                    continue
                if costs.is_blocked(before.index, index):
                    continue
                total += costs.hop_ms(before.index, index)
                reach = total + costs.back_ms(index, before.first)
                if best is None or reach < best.reach_ms:
                    best = Label(total, reach, index, before.first, before)
        if best is not None:
            _keep(at_cut.setdefault(span.end, []), best, labels_per_cut)
    ends = [
        label
        for label in at_cut.get(num_layers, ())
        if label.index == label.first or not costs.is_blocked(label.index, label.first)
    ]
    if not ends:
        return None
    return min(ends, key=lambda e: (e.reach_ms + prices[e.index].head, e.index)).path()


def _keep(labels: list[Label], label: Label, most: int | None) -> None:
    labels.append(label)
    labels.sort(key=lambda known: (known.reach_ms, known.index))
    if most is not None:
        del labels[most:]
