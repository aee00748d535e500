"""How long choosing a chain takes, as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks._selection_rows import (
    CHAINS_BAR_US,
    EXACT_BAR_US,
    REBUILD_BAR_MS,
    MixedRow,
    Rebuilt,
    Row,
    at_reference,
)


def show(
    console: Console,
    rows: Sequence[Row],
    mixed: Sequence[MixedRow],
    rebuilt: Sequence[Rebuilt],
) -> None:
    """All tables."""
    console.print(_aligned(rows))
    console.print(_ready(rows))
    console.print(_stitched(mixed))
    console.print(_rebuilt(rebuilt))


def _aligned(rows: Sequence[Row]) -> Table:
    table = Table(
        "nodes", "exact", "at 30 ns", "p95", "bar", "mixed links", "5 news", title="aligned"
    )
    for row in rows:
        table.add_row(
            str(row.num_nodes),
            f"{row.exact_us:.1f} us",
            f"{at_reference(row.exact_us, row.turn_ns):.1f} us",
            f"{row.exact_p95_us:.1f} us",
            f"{EXACT_BAR_US[row.num_nodes]:.0f} us",
            f"{row.exact_mixed_us:.1f} us",
            f"{row.exact_told_us:.1f} us",
        )
    return table


def _ready(rows: Sequence[Row]) -> Table:
    table = Table(
        "nodes", "choose", "reserve", "release", "together", "at 30 ns", "bar", title="ready chains"
    )
    for row in rows:
        together = row.choose_us + row.reserve_us + row.release_us
        table.add_row(
            str(row.num_nodes),
            f"{row.choose_us:.1f} us",
            f"{row.reserve_us:.1f} us",
            f"{row.release_us:.1f} us",
            f"{together:.1f} us",
            f"{at_reference(together, row.ready_turn_ns):.1f} us",
            f"{CHAINS_BAR_US:.0f} us",
        )
    return table


def _stitched(mixed: Sequence[MixedRow]) -> Table:
    table = Table(
        "nodes",
        "spans",
        "",
        "exact",
        "at 30 ns",
        "p95",
        "bar",
        "5 news",
        "prepare",
        title="stitched",
    )
    for one in mixed:
        table.add_row(
            str(one.num_nodes),
            str(one.num_spans),
            one.ground,
            f"{one.exact_us:.1f} us",
            f"{at_reference(one.exact_us, one.turn_ns):.1f} us",
            f"{one.exact_p95_us:.1f} us",
            f"{EXACT_BAR_US[one.num_nodes]:.0f} us",
            f"{one.exact_told_us:.1f} us",
            f"{one.prepare_ms:.1f} ms",
        )
    return table


def _rebuilt(rebuilt: Sequence[Rebuilt]) -> Table:
    table = Table(
        "nodes", "spans", "first answer", "later ones", "bar", "chains", title="after a change"
    )
    for one in rebuilt:
        bar_ms = REBUILD_BAR_MS.get(one.num_nodes)
        table.add_row(
            str(one.num_nodes),
            one.ground,
            f"{one.first_ms:.1f} ms",
            f"{one.num_later} x {one.later_ms_max:.1f} ms",
            f"{bar_ms:.0f} ms" if bar_ms is not None else "",
            str(one.num_chains),
        )
    return table
