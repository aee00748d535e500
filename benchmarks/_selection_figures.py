"""How long choosing a chain takes: from the chains that are kept ready, exact, and stitched.

CPU time of one thread, median over requests of many lengths, each the best of three. Nodes: five
speeds, four regions, some busy; boundaries aligned as replicas of one plan have them (four stages);
or stitched: as our planner leaves a pool, after some left, or every node's its own. Run it as
`python benchmarks/selection.py [--strict] [--json FILE]`.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, judge, write_figures
from benchmarks._crowd import HOP_BYTES, MODEL, NUM_LAYERS, crowd
from benchmarks._mixed import Mixed, planned
from plait.cli.solver_output import hush_banner
from scheduler.selection import Candidate, Query
from scheduler.selection.board import Board
from scheduler.selection.candidates import Load, Promise
from scheduler.selection.router import Router
from scheduler.selection.stitched import Stitcher

SIZES: Final = (64, 128, 1_000, 10_000)
EXACT_BAR_US: Final = {64: 25.0, 128: 100.0, 1_000: 450.0, 10_000: 8_000.0}
CHAINS_BAR_US: Final = 20.0
MIXED_SIZES: Final = (64, 128)
PROMISE: Final = Promise(5_000.0, 300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Microseconds, medians. `exact_mixed`: some downlinks are slower than some uplinks.
    `exact_told`: with news of five nodes since the last request. `choose`, `reserve`, `release`: a
    ready chain chosen for an interactive request, its nodes told, and told again at the end."""

    num_nodes: int
    exact_us: float
    exact_p95_us: float
    exact_mixed_us: float
    exact_told_us: float
    choose_us: float
    reserve_us: float
    release_us: float
    rebuild_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow:
    """Spans that overlap. `prepare_ms`: what nodes that come, go or move cost the first request."""

    num_nodes: int
    ground: str
    num_spans: int
    exact_us: float
    exact_p95_us: float
    exact_told_us: float
    prepare_ms: float


def queries(count: int) -> list[Query]:
    """Lengths as in a conversation trace."""
    rng = Random(1)
    found = []
    for _ in range(count):
        prompt = min(8_000, max(1, round(rng.lognormvariate(math.log(1_020), 0.75))))
        new = min(1_024, max(1, round(rng.lognormvariate(math.log(129), 0.9))))
        found.append(
            Query(
                spec=MODEL,
                prompt_tokens=prompt,
                new_tokens=new,
                kv_tokens=prompt + new,
                hop_bytes=HOP_BYTES,
            )
        )
    return found


def timed(asked: Sequence[Query], ask: Callable[[Query], object]) -> list[float]:
    """Microseconds of each, sorted."""
    ask(asked[0])
    taken = []
    for query in asked:
        best = math.inf
        for _ in range(3):
            started = time.perf_counter()
            ask(query)
            best = min(best, time.perf_counter() - started)
        taken.append(1e6 * best)
    return sorted(taken)


def measure(num_nodes: int) -> Row:
    """One size."""
    asked = queries(200 if num_nodes <= 1_000 else 60)
    candidates, places = crowd(num_nodes)
    board = Board(candidates, places, num_layers=NUM_LAYERS, hop_bytes=HOP_BYTES)
    exact = timed(asked, board.best)
    mixed, mixed_places = crowd(num_nodes, is_mixed=True)
    mixed_board = Board(mixed, mixed_places, num_layers=NUM_LAYERS, hop_bytes=HOP_BYTES)
    started = time.perf_counter()
    router = Router(candidates, places, spec=MODEL, hop_bytes=HOP_BYTES)
    rebuild_ms = 1e3 * (time.perf_counter() - started)
    promised = [replace(query, promise=PROMISE) for query in asked]
    choose, reserve, release = _ready(router, candidates, promised)
    return Row(
        num_nodes=num_nodes,
        exact_us=statistics.median(exact),
        exact_p95_us=exact[int(0.95 * len(exact))],
        exact_mixed_us=statistics.median(timed(asked, mixed_board.best)),
        exact_told_us=statistics.median(timed(asked, _with_news(board, candidates))),
        choose_us=choose,
        reserve_us=reserve,
        release_us=release,
        rebuild_ms=rebuild_ms,
    )


def _with_news(board: Board, candidates: Sequence[Candidate]) -> Callable[[Query], object]:
    rng = Random(2)

    def ask(query: Query) -> object:
        for candidate in rng.sample(candidates, 5):
            board.update(replace(candidate, num_requests=rng.randrange(8)))
        return board.best(query)

    return ask


def _ready(
    router: Router, candidates: Sequence[Candidate], asked: Sequence[Query]
) -> tuple[float, float, float]:
    """Choosing among ready chains; telling the router of what was reserved on each stage, the
    request in the batch and its prompt ahead; and of what was given back. The chains are summed up
    again when they are next asked for, so the first choice after news pays for it."""
    loads = {c.node_id: c.load for c in candidates}
    choosing: list[float] = []
    reserving: list[float] = []
    releasing: list[float] = []
    for query in asked:
        taken = [[math.inf] * 3 for _ in range(3)]
        for one in taken:
            started = time.perf_counter()
            decision = router.route(query)
            one[0] = 1e6 * (time.perf_counter() - started)
            assert decision is not None
            before = [(stage.node_id, loads[stage.node_id]) for stage in decision.route]
            started = time.perf_counter()
            for node_id, (free, num, queue, step_ms) in before:
                router.tell(
                    node_id,
                    Load(free - query.kv_tokens, num + 1, queue + query.prompt_tokens, step_ms),
                )
            one[1] = 1e6 * (time.perf_counter() - started)
            started = time.perf_counter()
            for node_id, load in before:
                router.tell(node_id, load)
            one[2] = 1e6 * (time.perf_counter() - started)
        for figures, at in ((choosing, 0), (reserving, 1), (releasing, 2)):
            figures.append(min(one[at] for one in taken))
    return statistics.median(choosing), statistics.median(reserving), statistics.median(releasing)


def measure_mixed(num_nodes: int) -> list[MixedRow]:
    """Spans that overlap: as planned, after some left, and every node with its own boundaries."""
    asked = queries(100)
    crowded, places = crowd(num_nodes, is_aligned=False)
    grounds = {
        "planned": planned(num_nodes),
        "repaired": planned(num_nodes, num_leaving=max(2, num_nodes // 16)),
        "random": Mixed(MODEL, HOP_BYTES, crowded, places),
    }
    rows = []
    for name, ground in grounds.items():
        board = Board(
            ground.candidates,
            ground.places,
            num_layers=ground.spec.num_layers,
            hop_bytes=ground.hop_bytes,
        )
        own = [replace(q, spec=ground.spec, hop_bytes=ground.hop_bytes) for q in asked]
        started = time.perf_counter()
        stitcher = Stitcher(board, ground.spec.num_layers)
        stitcher.best(own[0])
        prepare_ms = 1e3 * (time.perf_counter() - started)
        exact = timed(own, stitcher.best)
        rng = Random(3)

        def told(query: Query) -> object:
            for candidate in rng.sample(ground.candidates, 5):  # noqa: B023 - asked in this turn
                load = candidate.load._replace(num_requests=rng.randrange(8))  # noqa: B023
                board.tell(candidate.node_id, load)  # noqa: B023
            return stitcher.best(query)  # noqa: B023

        told(own[0])
        rows.append(
            MixedRow(
                num_nodes=num_nodes,
                ground=name,
                num_spans=len({c.span for c in ground.candidates}),
                exact_us=statistics.median(exact),
                exact_p95_us=exact[int(0.95 * len(exact))],
                exact_told_us=statistics.median(timed(own, told)),
                prepare_ms=prepare_ms,
            )
        )
    return rows


def bars_of(rows: Sequence[Row], mixed: Sequence[MixedRow]) -> list[Bar]:
    """What choosing may take: exactly at each size, aligned and stitched; from ready chains."""
    named = [(f"exact, {row.num_nodes} nodes", row.num_nodes, row.exact_us) for row in rows]
    named += [
        (f"exact, {row.num_nodes} nodes, {row.ground}", row.num_nodes, row.exact_us)
        for row in mixed
    ]
    bars = [
        Bar(name=name, measured=taken_us, most=EXACT_BAR_US[num_nodes], unit="us")
        for name, num_nodes, taken_us in named
    ]
    return bars + [
        Bar(
            name=f"ready chains, {row.num_nodes} nodes",
            measured=row.choose_us + row.reserve_us + row.release_us,
            most=CHAINS_BAR_US,
            unit="us",
        )
        for row in rows
    ]


def show(console: Console, rows: Sequence[Row], mixed: Sequence[MixedRow]) -> None:
    """Both tables."""
    table = Table(
        "nodes", "exact", "p95", "bar", "mixed links", "5 news", "rebuild", title="aligned"
    )
    for row in rows:
        table.add_row(
            str(row.num_nodes),
            f"{row.exact_us:.1f} us",
            f"{row.exact_p95_us:.1f} us",
            f"{EXACT_BAR_US[row.num_nodes]:.0f} us",
            f"{row.exact_mixed_us:.1f} us",
            f"{row.exact_told_us:.1f} us",
            f"{row.rebuild_ms:.1f} ms",
        )
    console.print(table)
    table = Table("nodes", "choose", "reserve", "release", "together", "bar", title="ready chains")
    for row in rows:
        together = row.choose_us + row.reserve_us + row.release_us
        table.add_row(
            str(row.num_nodes),
            f"{row.choose_us:.1f} us",
            f"{row.reserve_us:.1f} us",
            f"{row.release_us:.1f} us",
            f"{together:.1f} us",
            f"{CHAINS_BAR_US:.0f} us",
        )
    console.print(table)
    table = Table(
        "nodes", "spans", "", "exact", "p95", "bar", "5 news", "prepare", title="stitched"
    )
    for one in mixed:
        table.add_row(
            str(one.num_nodes),
            str(one.num_spans),
            one.ground,
            f"{one.exact_us:.1f} us",
            f"{one.exact_p95_us:.1f} us",
            f"{EXACT_BAR_US[one.num_nodes]:.0f} us",
            f"{one.exact_told_us:.1f} us",
            f"{one.prepare_ms:.1f} ms",
        )
    console.print(table)


def main() -> None:
    """Print the tables; write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    options = parser.parse_args()
    hush_banner()
    rows = [measure(size) for size in SIZES]
    mixed = [row for size in MIXED_SIZES for row in measure_mixed(size)]
    console = Console(width=120)
    show(console, rows, mixed)
    bars = bars_of(rows, mixed)
    figures = {
        "rows": [asdict(row) for row in rows],
        "mixed": [asdict(row) for row in mixed],
    }
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
