"""Goodput of simulated pools against greedy pipelines taken in turns, with and without churn; and
the simulator's word on a real three-node ring.

Pools come from `--yardsticks DIR` (`pools/nN-s0.json` there) or are drawn alike, `--seeds` of each
size: five kinds of consumer GPUs, four regions, home links. Conversation lengths, bursty arrivals,
as many as suit the pool (`_simulated_pools.py`). The ring is `_ring_held.py`'s.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, at_least, judge, wide_console, write_figures
from benchmarks._ring_held import Held, Ring, hold_against_ring
from benchmarks._simulated_pools import Case, offered_per_s, pool_of, run_case

SIZES: Final = (
    # nodes, minutes
    (32, 30.0),
    (128, 10.0),
)
CHURNS: Final = (0.0, 0.05)
GOODPUT_BAR: Final = 1.8
RATE_BAR, TTFT_BAR = 0.15, 0.20
NEW_TOKENS: Final = 32


def bars_of(cases: Sequence[Case], held: Sequence[Held]) -> list[Bar]:
    """Goodput and waits against the baseline, of several pools the median; the simulator's word
    against the real ring."""
    bars = []
    for num_nodes, churn in sorted({(case.num_nodes, case.churn) for case in cases}):
        alike = [case for case in cases if (case.num_nodes, case.churn) == (num_nodes, churn)]
        gain = statistics.median(case.gain for case in alike)
        waits = statistics.median(case.ttft_p95_ratio for case in alike)
        name = f"{num_nodes} nodes, churn {100 * churn:g} %"
        bars += [
            Bar(name=f"{name}: goodput / baseline", measured=gain, least=GOODPUT_BAR),
            Bar(name=f"{name}: TTFT p95 / baseline", measured=waits, most=1.0),
        ]
    for one in held:
        for figure, error, most in (
            ("tokens/s", one.rate_error, RATE_BAR),
            ("TTFT", one.ttft_error, TTFT_BAR),
        ):
            name = f"ring, {one.num_requests} requests: {figure} predicted off by"
            bars.append(Bar(name=name, measured=100 * abs(error), most=100 * most, unit="%"))
    return bars


def run_cases(console: Console, yardsticks: Path | None, num_seeds: int) -> Iterator[Case]:
    """Every pool under its load, said as it is done."""
    for num_nodes, minutes in SIZES:
        for seed in range(1 if yardsticks else num_seeds):
            pool = pool_of(num_nodes, yardsticks, seed=seed)
            rate = offered_per_s(pool)
            name = "yardstick" if yardsticks else f"seed {seed}"
            for churn in CHURNS:
                case = run_case(pool, name=name, rate_per_s=rate, minutes=minutes, churn=churn)
                console.print(
                    f"{num_nodes} nodes, {name}, churn {100 * churn:g} %: gain {case.gain:.2f}",
                    highlight=False,
                )
                yield case


def show_cases(console: Console, cases: Sequence[Case]) -> None:
    """Both strategies side by side."""
    table = Table(
        "pool", "load", "leaves", "strategy", "goodput/s", "tokens/s", "TTFT s", "TPOT s", "failed"
    )
    for case in cases:
        for name, report in (("plait", case.plait), ("round-robin", case.baseline)):
            table.add_row(
                f"{case.num_nodes}, {case.name}",
                f"{case.rate_per_s:.2f}/s, {case.minutes:g} min",
                str(case.num_leaves),
                name,
                f"{report.goodput_per_s:.2f}",
                f"{report.tokens_per_s:.0f}",
                _three(report.ttft_s),
                _three(report.tpot_s),
                str(report.num_failed),
            )
        gain, waits = f"{case.gain:.2f}", f"p95 {case.ttft_p95_ratio:.2f}"
        table.add_row("", "", "", "gain", gain, "", waits, "", "", end_section=True)
    console.print(table)


def _three(figures: tuple[float, float, float]) -> str:
    return " / ".join("-" if math.isnan(figure) else f"{figure:.2f}" for figure in figures)


def show_ring(console: Console, ring: Ring) -> None:
    """Prediction and truth, and what the predictions were made with."""
    table = Table(
        "requests", "tokens/s", "predicted", "off", "bar", "TTFT ms", "predicted", "off", "bar"
    )
    for one in ring.held:
        table.add_row(
            str(one.num_requests),
            f"{one.tokens_per_s:.1f}",
            f"{one.predicted_tokens_per_s:.1f}",
            f"{100 * one.rate_error:+.0f} ± {100 * one.rate_spread:.0f} %",
            f"{100 * RATE_BAR:.0f} %",
            f"{1e3 * one.ttft_s:.0f}",
            f"{1e3 * one.predicted_ttft_s:.0f}",
            f"{100 * one.ttft_error:+.0f} ± {100 * one.ttft_spread:.0f} %",
            f"{100 * TTFT_BAR:.0f} %",
        )
    console.print(table)
    factors = ring.fit.factors.values()
    steps = ", ".join(f"{decode:.2f}" for decode, _ in factors)
    prompts = ", ".join(f"{prompt:.2f}" for _, prompt in factors)
    console.print(
        f"calibrated: nodes now take {steps} times as long for a step, and {prompts} times for a "
        f"prompt, as when they measured themselves; a frame takes {1e3 * ring.fit.frame_s:.1f} ms, "
        f"the gateway {1e3 * ring.fit.gateway_s:.0f} ms for a request; load average "
        f"{ring.load:.1f} on {ring.num_cores} cores",
        highlight=False,
    )


def main() -> None:
    """Print both tables; write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yardsticks", type=Path, help="a folder with pools/nN-s0.json")
    parser.add_argument(
        "--seeds", type=at_least(1), default=3, help="so many pools of each size, drawn"
    )
    parser.add_argument("--no-pools", action="store_true", help="leave the simulated pools out")
    parser.add_argument("--no-ring", action="store_true", help="leave the real network out")
    parser.add_argument("--rounds", type=at_least(1), default=8, help="of the real network")
    add_options(parser)
    options = parser.parse_args()
    console = wide_console()
    figures: dict[str, object] = {"benchmark": "simulation"}
    cases: list[Case] = []
    if not options.no_pools:
        cases = list(run_cases(console, options.yardsticks, options.seeds))
        show_cases(console, cases)
        figures["cases"] = [
            {**asdict(case), "gain": case.gain, "ttft_p95_ratio": case.ttft_p95_ratio}
            for case in cases
        ]
    held: Sequence[Held] = ()
    if not options.no_ring:
        ring = hold_against_ring(rounds=options.rounds, new_tokens=NEW_TOKENS)
        show_ring(console, ring)
        held, figures["ring"] = ring.held, asdict(ring)
    bars = bars_of(cases, held)
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


if __name__ == "__main__":
    main()
