"""The scheduler's figures: clusters, pools, large pools, live networks.

`python benchmarks/scheduler.py [--yardsticks DIR] [--strict] [--json FILE]`. DIR holds
clusters/*.json and pools/*.json as `plait plan` reads them, and where known a README.md with the
rates of another planner; without it pools are drawn. Times are CPU seconds of one core.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import add_options, judge, wide_console, write_figures
from benchmarks._live_plans import SIZES, UNSOLVED_SIZES, measure, measure_unsolved
from benchmarks._pools import draw_pool, published, read_pools, roomiest_first
from benchmarks._repair_figures import NODES, SEEDS, repairs, spread
from benchmarks._scheduler_bars import bars_of
from plait.cli.plan_cluster import read_cluster
from plait.cli.plan_nominal import read_nominal
from plait.cli.solver_output import hush_banner
from plait.errors import UnavailableError
from scheduler.planning.check import pool_violations
from scheduler.planning.cluster_plan import plan_cluster
from scheduler.planning.ground import Wish
from scheduler.planning.pool import plan_pool

Figures = list[dict[str, object]]
STAGES: Final = (None, 12, 14)
DRAWN_SIZES: Final = (8, 16, 32, 64, 128, 512)
LARGE_SIZES: Final = (64, 1_000, 10_000)
SMALL, LARGE = 8, 128
WARM_UP_NODES: Final = 6


def clusters(folder: Path, console: Console) -> Figures:
    """Every cluster under every bound on stages."""
    rows: Figures = []
    for path in sorted((folder / "clusters").glob("*.json")):
        cluster = read_cluster(json.loads(path.read_text("utf-8")), path.name)
        for stages_max in STAGES:
            started = time.process_time()
            try:
                plan = plan_cluster(cluster, Wish(stages_max=stages_max))
            except UnavailableError as error:
                console.print(f"{path.name} at {stages_max} stages: {error}")
                continue
            rows.append(
                {
                    "cluster": path.stem,
                    "stages max": stages_max or "any",
                    "stages": plan.num_stages,
                    "tokens/s": round(plan.flow_per_s, 2),
                    "bound tokens/s": round(plan.bound_per_s, 2),
                    "proved": "yes" if plan.is_proved else "no",
                    "cpu s": round(time.process_time() - started, 2),
                }
            )
    return rows


def pools(folder: Path | None) -> Figures:
    """Every pool for every model, beside the roomiest-first planner and published rates."""
    found: Mapping[int, Mapping[str, object]] = (
        read_pools(folder) if folder is not None else {n: draw_pool(n, 0) for n in DRAWN_SIZES}
    )
    models = sorted({name for pool in found.values() for name in _models(pool)})
    rows: Figures = []
    for model in models:
        theirs = published(folder, model) if folder is not None else {}
        if folder is None or theirs:
            rows += [
                _pool_row(pool, size, model, theirs.get(size, ())) for size, pool in found.items()
            ]
    return rows


def means(rows: Figures) -> Figures:
    """Of the pools of a model: rates over others' as the geometric mean of the sizes that are
    compared, the quickest chain's tokens as the median of all."""
    found: Figures = []
    for model in sorted({str(row["model"]) for row in rows}):
        mean: dict[str, object] = {"model": model}
        for name in ("/ first published", "/ best published", "/ roomiest"):
            ratios = [
                float(str(row[name]))
                for row in rows
                if row["model"] == model
                and row[name] != ""
                and SMALL <= int(str(row["nodes"])) <= LARGE
            ]
            mean[name] = round(statistics.geometric_mean(ratios), 3) if ratios else ""
            mean["pools"] = max(len(ratios), int(str(mean.get("pools", 0))))
        tpot = [
            float(str(row["tpot / roomiest"]))
            for row in rows
            if row["model"] == model and row["tpot / roomiest"] != ""
        ]
        mean["tpot / roomiest, median"] = round(statistics.median(tpot), 3) if tpot else ""
        found.append(mean)
    return found


def _models(pool: Mapping[str, object]) -> list[str]:
    models = pool["models"]
    return sorted(models) if isinstance(models, dict) else []


def _pool_row(
    pool: Mapping[str, object], size: int, model: str, theirs: Sequence[float]
) -> dict[str, object]:
    ground = read_nominal(pool, str(size), model).ground
    started = time.process_time()
    plan = plan_pool(ground, Wish())
    taken_s = time.process_time() - started
    wrong = pool_violations(ground, plan)
    if wrong:
        raise SystemExit(f"{size} nodes, {model}: {wrong[0]}")
    other = roomiest_first(ground)
    carried = sum(chain.rate_per_s for chain in other)
    quickest = min((chain.tpot_s_single for chain in other), default=0.0)
    best_s = min(chain.tpot_s for chain in plan.chains)
    return {
        "model": model,
        "nodes": size,
        "chains": len(plan.chains),
        "tokens/s": round(plan.rate_per_s, 1),
        "LP bound tokens/s": round(plan.bound_per_s, 1),
        "gap %": round(100 * (1 - plan.rate_per_s / plan.bound_per_s), 2),
        "/ first published": round(plan.rate_per_s / theirs[0], 3) if theirs else "",
        "/ best published": round(plan.rate_per_s / max(theirs), 3) if theirs else "",
        "/ roomiest": round(plan.rate_per_s / carried, 3) if carried else "",
        "tpot ms": round(1e3 * best_s, 1),
        "tpot / roomiest": round(best_s / quickest, 3) if quickest else "",
        "cpu s": round(taken_s, 2),
    }


def large() -> Figures:
    """Time and memory of large drawn pools."""
    rows: Figures = []
    for size in LARGE_SIZES:
        pool = draw_pool(size, 1)
        for model in _models(pool):
            ground = read_nominal(pool, str(size), model).ground
            started = time.process_time()
            plan = plan_pool(ground, Wish())
            rows.append(
                {
                    "nodes": size,
                    "model": model,
                    "tokens/s": round(plan.rate_per_s, 1),
                    "gap %": round(100 * (1 - plan.rate_per_s / plan.bound_per_s), 2),
                    "cpu s": round(time.process_time() - started, 2),
                    "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
                }
            )
    return rows


def live() -> Figures:
    """Plans and routes of live networks."""
    return [
        {
            "nodes": row.num_nodes,
            "plan ms": round(row.plan_ms),
            "solver": row.solver,
            "chains": row.num_chains,
            "tokens/s": round(row.tokens_per_s, 1),
            "/ greedy": round(row.over_greedy, 3),
            "/ bound": round(row.of_bound, 3),
            "route us": round(row.route_us, 1),
        }
        for row in map(measure, SIZES)
    ]


def unsolved() -> Figures:
    """Live networks whose solver is missing or fails."""
    return [
        {
            "nodes": row.num_nodes,
            "plan cpu s": round(row.plan_s, 2),
            "repair cpu s": round(row.repair_s, 2),
            "tokens/s": round(row.tokens_per_s, 1),
            "repaired tokens/s": round(row.repaired_per_s, 1),
        }
        for row in map(measure_unsolved, UNSOLVED_SIZES)
    ]


def show(console: Console, title: str, rows: Figures) -> None:
    """One table."""
    if not rows:
        return
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    """Print the tables; write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--yardsticks", type=Path, help="a folder of clusters/ and pools/")
    options = parser.parse_args()
    hush_banner()
    console = wide_console()
    folder: Path | None = options.yardsticks
    warm_up = read_nominal(draw_pool(WARM_UP_NODES, 0), "warm-up", "8b-bf16").ground
    plan_pool(warm_up, Wish())  # imports and the solver's start are not the plan's
    parts: dict[str, Figures] = {}
    if folder is not None:
        parts["clusters"] = clusters(folder, console)
    parts["pools"] = pools(folder)
    parts["means of pools"] = means(parts["pools"])
    parts["repairs"] = repairs(
        read_pools(folder)[NODES] if folder is not None else draw_pool(NODES, 0)
    )
    parts["repairs of other pools"] = spread([draw_pool(NODES, seed) for seed in SEEDS])
    parts["large pools"] = large()
    parts["live networks"] = live()
    parts["live networks without a solver"] = unsolved()
    for title, rows in parts.items():
        show(console, title, rows)
    bars = bars_of(parts)
    write_figures(options.json, {"benchmark": "scheduler", **parts}, bars)
    judge(bars, console, is_strict=options.strict)
