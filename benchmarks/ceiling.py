"""The most that any plan of a small pool carries, proved, beside what the planner finds.

Up to eight machines everything is tried. Up to sixteen the proof has three steps:

1. An LP over the lean sets of machines (none of which would do without its two least roomy), priced
   by the planner's arrays, gives each machine a price p and a bound L on plans of these columns.
2. Every set S of machines is asked for its best chain, over all orders and splits, if it carries
   more than p(S) - (L - known): a plan better than the known one uses no other sets, since
   together they would miss more than L - known. `scheduler.planning.exact` answers exactly, and
   rules most sets out by a bound.
3. An ILP over the sets that are left is then the best plan there is, and its bound the ceiling.

Larger pools get prices that no chain exceeds, scanned over all mixes of machines
(`_ceiling_proof.py`): proved too, though no longer the best that a plan could do. Where published
rates of another planner are known, the ratio that no plan exceeds is printed.

`python benchmarks/ceiling.py [--yardsticks DIR] [--model NAME ...] [--nodes N ...] [--json FILE]
[--strict]`; without DIR pools are drawn by seed.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)


from rich.table import Table

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from benchmarks._ceiling_proof import prove
from benchmarks._pools import draw_pool, published, read_pools
from plait.cli.plan_nominal import read_nominal
from scheduler.planning.exact import BestChains
from scheduler.planning.ground import Ground, Wish
from scheduler.planning.kinds import MachineClass
from scheduler.planning.master import Master
from scheduler.planning.pack import pack
from scheduler.planning.patterns import Pattern, orders_of, pad
from scheduler.planning.pool import EXHAUSTIVE_MACHINES_MAX, plan_pool
from scheduler.planning.price import price
from scheduler.planning.table import make_table

ENUMERATED_MACHINES_MAX: Final = 16
RATIO_BARS: Final = {"qwen2.5-72b-int4": 1.9, "qwen3-32b-int4": 1.25}
"""Of plans to the better published one, on the geometric mean."""
NEAR_BAR: Final = 0.995
"""Share of an exact ceiling that a plan should reach."""
SCANNED_BAR: Final = 0.9
"""The same of prices over all mixes, which leave out downlinks and whole numbers of chains."""
SIZES: Final = (8, 16, 32, 64, 128)
SPARE: Final = 2
BATCH: Final = 500
LIMIT_S: Final = 120.0
SCANNED: Final = "scanned"
DRAWN: Final = ("72b-int4", "32b-int4")
SEED: Final = 0
SLACK: Final = 1e-4
"""Share of the known rate that rounding may hide."""


def lean_columns(ground: Ground) -> list[Pattern]:
    """Lean sets of machines with their rates, roughly priced."""
    table = make_table(ground)
    classes = _classes(ground)
    found: list[Pattern] = []
    for sets in _batches(_lean_sets(ground)):
        orders = [order for members in sets for order in orders_of(classes, members)]
        priced = price(table, pad(table, orders, max(map(len, orders))), grid=6)
        best: dict[tuple[int, ...], Pattern] = {}
        for row, order in enumerate(orders):
            rate, key = float(priced.rate[row]), tuple(sorted(order))
            if rate > 0.0 and (key not in best or rate > best[key].rate):
                counts = tuple(int(k) for k in priced.counts[row][: len(order)])
                best[key] = Pattern(order, counts, rate, float(priced.tpot[row]))
        found += best.values()
    return found


def _lean_sets(ground: Ground) -> Iterator[tuple[int, ...]]:
    room = [m.layers_max(is_first=False, is_last=False) for m in ground.machines]
    for size in range(1, len(room) + 1):
        for members in itertools.combinations(range(len(room)), size):
            rooms = sorted(room[i] for i in members)
            is_whole = sum(rooms) >= ground.num_layers
            if is_whole and (size <= SPARE or sum(rooms[SPARE:]) < ground.num_layers):
                yield members


def _batches(sets: Iterator[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    while batch := list(itertools.islice(sets, BATCH)):
        yield batch


def _classes(ground: Ground) -> list[MachineClass]:
    return [MachineClass((i,), machine) for i, machine in enumerate(ground.machines)]


def useful_sets(ground: Ground, prices: Sequence[float], slack: float) -> list[Pattern]:
    """The best chain of every set of machines that carries more than its price less `slack`."""
    room = [m.layers_max(is_first=False, is_last=False) for m in ground.machines]
    chains = BestChains(ground, Wish())
    found: list[Pattern] = []
    for size in range(1, len(room) + 1):
        for members in itertools.combinations(range(len(room)), size):
            if sum(room[i] for i in members) < ground.num_layers:
                continue
            least = max(0.0, sum(prices[i] for i in members) - slack)
            best = chains.best(members, least)
            if best is not None:
                found.append(Pattern(best.order, best.counts, best.rate, best.tpot_s))
    return found


def ceiling(ground: Ground, known: float) -> float:
    """What no plan exceeds, `known` being what one of them carries."""
    columns = lean_columns(ground)
    master = Master([1] * len(ground.machines), time_limit_s=LIMIT_S)
    master.join(columns)
    bound, prices = master.solve()
    able = useful_sets(ground, prices, max(0.0, bound - known) + SLACK * known)
    packing = pack(able, _classes(ground), time_limit_s=LIMIT_S)
    carried = sum(use * p.rate for use, p in zip(packing.uses, able, strict=True))
    if packing.status != "optimal":
        return max(known, packing.lp_bound)
    return max(known, carried) * (1.0 + 2 * SLACK)


def row_of(
    ground: Ground, num_nodes: int, model: str, theirs: Sequence[float]
) -> dict[str, object]:
    """One pool's figures."""
    started = time.process_time()
    plan = plan_pool(ground, Wish())
    how, most = "tried", plan.bound_per_s
    if num_nodes > ENUMERATED_MACHINES_MAX:
        how, most = SCANNED, prove(ground).most
    elif num_nodes > EXHAUSTIVE_MACHINES_MAX:
        how, most = "enumerated", ceiling(ground, plan.rate_per_s)
    return {
        "model": model,
        "nodes": num_nodes,
        "tokens/s": round(plan.rate_per_s, 2),
        "ceiling tokens/s": round(most, 2),
        "how": how,
        "published tokens/s": max(theirs) if theirs else None,
        "ratio": round(plan.rate_per_s / max(theirs), 4) if theirs else None,
        "ratio at most": round(most / max(theirs), 4) if theirs else None,
        "cpu s": round(time.process_time() - started, 1),
    }


def _bars_of(model: str, rows: Sequence[Mapping[str, object]]) -> list[Bar]:
    """Plans and ceilings against the published plans, and plans against proved ceilings."""
    bars: list[Bar] = []
    for name, what in (("ratio", "plans"), ("ratio at most", "proved ceilings")):
        ratios = [float(str(row[name])) for row in rows if row[name] is not None]
        if ratios and model in RATIO_BARS:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            name = f"{model}: {what} / published, mean of {len(ratios)}"
            bars.append(Bar(name=name, measured=mean, least=RATIO_BARS[model]))
    for row in rows:
        share = float(str(row["tokens/s"])) / float(str(row["ceiling tokens/s"]))
        name = f"{model}, {row['nodes']} nodes: plan / proved ceiling"
        least = SCANNED_BAR if row["how"] == SCANNED else NEAR_BAR
        bars.append(Bar(name=name, measured=share, least=least))
    return bars


def main() -> None:
    """Prove pool after pool; print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yardsticks", type=Path, help="a folder with pools/")
    parser.add_argument("--model", nargs="+")
    parser.add_argument("--nodes", nargs="+", type=at_least(1), default=list(SIZES))
    add_options(parser)
    options = parser.parse_args()
    folder: Path | None = options.yardsticks
    pools: Mapping[int, Mapping[str, object]]
    if folder is None:
        pools = {size: draw_pool(size, SEED) for size in options.nodes}
    else:
        pools = read_pools(folder)
    console = wide_console()
    rows: list[dict[str, object]] = []
    bars: list[Bar] = []
    for model in options.model or (DRAWN if folder is None else RATIO_BARS):
        theirs = {} if folder is None else published(folder, model)
        own: list[dict[str, object]] = []
        for size in options.nodes:
            ground = read_nominal(pools[size], str(size), model).ground
            own.append(row_of(ground, size, model, theirs.get(size, ())))
            console.print(f"{model}, {size} nodes: {own[-1]['tokens/s']} tokens/s", highlight=False)
            # Proofs take minutes: what is proved by now outlives an interruption.
            write_figures(options.json, {"benchmark": "ceiling", "pools": rows + own}, bars)
        bars += _bars_of(model, own)
        rows += own
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)
    write_figures(options.json, {"benchmark": "ceiling", "pools": rows}, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
