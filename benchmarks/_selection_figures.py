"""How long choosing a chain takes: from the chains that are kept ready, exact, and stitched; and
how long the coordinator's loop stands still when nodes come, go or move.

Time of one thread, median over requests of many lengths, each the best of seven. Beside each of
them a plain loop is timed (`for i in range(1000): s += i`), also the best of seven: "at 30 ns" is
the figure as it would be where a turn of that loop takes 30 ns, so that figures of machines, and of
busy hours, can be compared. Bars are held against plain microseconds. Nodes: five
speeds, four regions, some busy; boundaries aligned as replicas of one plan have them (four stages);
or stitched: as our planner leaves a pool, after some left, or every node's its own. Run it as
`python benchmarks/selection.py [--strict] [--json FILE]`.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Final

from benchmarks._bars import Bar, add_options, judge, wide_console, write_figures
from benchmarks._crowd import HOP_BYTES, MODEL, NUM_LAYERS, crowd
from benchmarks._mixed import Mixed, planned
from benchmarks._selection_rows import (
    CHAINS_BAR_US,
    EXACT_BAR_US,
    REBUILD_BAR_MS,
    REBUILD_SIZES,
    SIZES,
    MixedRow,
    Rebuilt,
    Row,
)
from benchmarks._selection_tables import show
from plait.cli.solver_output import hush_banner
from scheduler.selection import Candidate, Query
from scheduler.selection.board import Board
from scheduler.selection.candidates import Promise
from scheduler.selection.router import Router
from scheduler.selection.stitched import Stitcher

MIXED_SIZES: Final = (64, 128)
REPEATS: Final = 7
PROMISE: Final = Promise(5_000.0, 300.0)


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


def timed(asked: Sequence[Query], ask: Callable[[Query], object]) -> tuple[list[float], float]:
    """Microseconds of each, sorted; and the reference loop's nanoseconds a turn meanwhile."""
    ask(asked[0])
    taken, turns = [], []
    for query in asked:
        best = turn = math.inf
        for _ in range(REPEATS):
            started = time.perf_counter()
            ask(query)
            best = min(best, time.perf_counter() - started)
            turn = min(turn, reference_s())
        taken.append(1e6 * best)
        turns.append(1e6 * turn)
    return sorted(taken), statistics.median(turns)


def reference_s() -> float:
    """Seconds of a thousand turns of the plainest loop."""
    total = 0
    started = time.perf_counter()
    for i in range(1_000):
        total += i
    return time.perf_counter() - started


def measure(num_nodes: int) -> Row:
    """One size."""
    asked = queries(200 if num_nodes <= 1_000 else 60)
    candidates, places = crowd(num_nodes)
    board = Board(candidates, places, num_layers=NUM_LAYERS, hop_bytes=HOP_BYTES)
    exact, turn_ns = timed(asked, board.best)
    mixed, mixed_places = crowd(num_nodes, is_mixed=True)
    mixed_board = Board(mixed, mixed_places, num_layers=NUM_LAYERS, hop_bytes=HOP_BYTES)
    router = Router(candidates, places, spec=MODEL, hop_bytes=HOP_BYTES)
    promised = [replace(query, promise=PROMISE) for query in asked]
    while router.grow():
        pass
    choose, reserve, release, ready_turn_ns = _ready(router, candidates, promised)
    return Row(
        num_nodes=num_nodes,
        exact_us=statistics.median(exact),
        exact_p95_us=exact[int(0.95 * len(exact))],
        exact_mixed_us=statistics.median(timed(asked, mixed_board.best)[0]),
        exact_told_us=statistics.median(timed(asked, _with_news(board, candidates))[0]),
        choose_us=choose,
        reserve_us=reserve,
        release_us=release,
        turn_ns=turn_ns,
        ready_turn_ns=ready_turn_ns,
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
) -> tuple[float, float, float, float]:
    """Choosing among ready chains; telling the router of what was reserved on each stage, the
    request in the batch and its prompt ahead; and of what was given back. The chains are summed up
    again when they are next asked for, so the first choice after news pays for it. The reference
    loop's nanoseconds a turn last."""
    loads = {c.node_id: c.load for c in candidates}
    choosing: list[float] = []
    reserving: list[float] = []
    releasing: list[float] = []
    turns: list[float] = []
    for query in asked:
        taken = [[math.inf] * 3 for _ in range(REPEATS)]
        turns.append(1e6 * min(reference_s() for _ in range(REPEATS)))
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
                    (free - query.kv_tokens, num + 1, queue + query.prompt_tokens, step_ms),
                )
            one[1] = 1e6 * (time.perf_counter() - started)
            started = time.perf_counter()
            for node_id, load in before:
                router.tell(node_id, load)
            one[2] = 1e6 * (time.perf_counter() - started)
        for figures, at in ((choosing, 0), (reserving, 1), (releasing, 2)):
            figures.append(min(one[at] for one in taken))
    choose, reserve, release, turn_ns = map(
        statistics.median, (choosing, reserving, releasing, turns)
    )
    return choose, reserve, release, turn_ns


def measure_rebuilt(num_nodes: int, *, is_aligned: bool) -> Rebuilt:
    """Of one size, from nothing as after any change of spans."""
    asked = queries(200)
    candidates, places = crowd(num_nodes, is_aligned=is_aligned)
    started = time.process_time()
    router = Router(candidates, places, spec=MODEL, hop_bytes=HOP_BYTES)
    router.route(asked[0])
    first_ms = 1e3 * (time.process_time() - started)
    later: list[float] = [0.0]
    is_growing = True
    while is_growing:
        started = time.process_time()
        is_growing = router.grow()
        later.append(1e3 * (time.process_time() - started))
    return Rebuilt(
        num_nodes=num_nodes,
        ground="aligned" if is_aligned else "random",
        first_ms=first_ms,
        later_ms_max=max(later),
        num_later=len(later) - 2,
        num_chains=len(router.chains.all),
    )


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
        exact, turn_ns = timed(own, stitcher.best)
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
                exact_told_us=statistics.median(timed(own, told)[0]),
                prepare_ms=prepare_ms,
                turn_ns=turn_ns,
            )
        )
    return rows


def bars_of(
    rows: Sequence[Row], mixed: Sequence[MixedRow], rebuilt: Sequence[Rebuilt]
) -> list[Bar]:
    """What choosing may take: exactly at each size, aligned and stitched; from ready chains. And
    how long the loop may stand still after a change of spans."""
    named = [(f"exact, {row.num_nodes} nodes", row.num_nodes, row.exact_us) for row in rows]
    named += [
        (f"exact, {row.num_nodes} nodes, {row.ground}", row.num_nodes, row.exact_us)
        for row in mixed
    ]
    bars = [
        Bar(name=name, measured=taken_us, most=EXACT_BAR_US[num_nodes], unit="us")
        for name, num_nodes, taken_us in named
    ]
    bars += [
        Bar(
            name=f"rebuild, {one.num_nodes} nodes, {one.ground}",
            measured=max(one.first_ms, one.later_ms_max),
            most=REBUILD_BAR_MS[one.num_nodes],
            unit="ms",
        )
        for one in rebuilt
        if one.num_nodes in REBUILD_BAR_MS
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


def main() -> None:
    """Print the tables; write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    options = parser.parse_args()
    hush_banner()
    rows = [measure(size) for size in SIZES]
    mixed = [row for size in MIXED_SIZES for row in measure_mixed(size)]
    console = wide_console()
    rebuilt = [
        measure_rebuilt(size, is_aligned=is_aligned)
        for size in REBUILD_SIZES
        for is_aligned in (True, False)
    ]
    show(console, rows, mixed, rebuilt)
    bars = bars_of(rows, mixed, rebuilt)
    figures = {
        "benchmark": "selection",
        "rows": [asdict(row) for row in rows],
        "mixed": [asdict(row) for row in mixed],
        "rebuilt": [asdict(one) for one in rebuilt],
    }
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
