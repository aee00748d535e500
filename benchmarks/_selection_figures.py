"""How long choosing a chain takes: exact, from the chains that are kept ready, and stitched.

CPU time of one thread, median over requests of many lengths, each the best of three. Nodes: five
speeds, four regions, some busy; boundaries aligned as replicas of one plan have them (four stages),
or every node's its own. Run it as `python benchmarks/selection.py [--json FILE]`.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._crowd import HOP_BYTES, MODEL, NUM_LAYERS, crowd
from scheduler.selection import Candidate, Query, select_route
from scheduler.selection.board import Board
from scheduler.selection.candidates import Load, Promise
from scheduler.selection.places import Places
from scheduler.selection.router import Router

SIZES: Final = (64, 128, 1_000, 10_000)
EXACT_BAR_US: Final = {64: 25.0, 128: 100.0, 1_000: 450.0, 10_000: 8_000.0}
CHAINS_BAR_US: Final = 20.0
STITCHED_MAX: Final = 1_000
PROMISE: Final = Promise(5_000.0, 300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Microseconds, medians. `exact_mixed`: some downlinks are slower than some uplinks.
    `exact_told`: with news of five nodes since the last request. `choose`, `reserve`, `release`: a
    ready chain chosen for an interactive request, its nodes told, and told again at the end. `stitched`: None where it is not measured."""

    num_nodes: int
    exact_us: float
    exact_p95_us: float
    exact_mixed_us: float
    exact_told_us: float
    choose_us: float
    reserve_us: float
    release_us: float
    rebuild_ms: float
    stitched_us: float | None


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
        stitched_us=_stitched_us(num_nodes, asked) if num_nodes <= STITCHED_MAX else None,
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
    choosing, reserving, releasing = [], [], []
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


def _stitched_us(num_nodes: int, asked: Sequence[Query]) -> float:
    candidates, places = crowd(num_nodes, is_aligned=False)
    return statistics.median(timed(asked[:9], _stitch(candidates, places)))


def _stitch(candidates: Sequence[Candidate], places: Places) -> Callable[[Query], object]:
    return lambda query: select_route(candidates, query, places)


def main() -> None:
    """Print the table; write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    rows = [measure(size) for size in SIZES]
    table = Table(
        "nodes",
        "exact",
        "p95",
        "bar",
        "mixed links",
        "5 news",
        "choose",
        "reserve",
        "release",
        "bar",
        "rebuild",
        "stitched",
    )
    for row in rows:
        table.add_row(
            str(row.num_nodes),
            f"{row.exact_us:.1f} us",
            f"{row.exact_p95_us:.1f} us",
            f"{EXACT_BAR_US[row.num_nodes]:.0f} us",
            f"{row.exact_mixed_us:.1f} us",
            f"{row.exact_told_us:.1f} us",
            f"{row.choose_us:.1f} us",
            f"{row.reserve_us:.1f} us",
            f"{row.release_us:.1f} us",
            f"{CHAINS_BAR_US:.0f} us",
            f"{row.rebuild_ms:.1f} ms",
            f"{row.stitched_us:.0f} us" if row.stitched_us is not None else "-",
        )
    Console(width=120).print(table)
    if options.json is not None:
        figures = {
            "rows": [asdict(row) for row in rows],
            "exact_bar_us": EXACT_BAR_US,
            "chains_bar_us": CHAINS_BAR_US,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
