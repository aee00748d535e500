"""Goodput of simulated pools against greedy pipelines taken in turns, with and without churn; and
the simulator's word on a real three-node ring.

Pools come from `--yardsticks DIR` (`pools/nN-s0.json` there) or are drawn alike: five kinds of
consumer GPUs, four regions, home links. Conversation lengths, bursty arrivals.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._bars import Bar, add_options, judge, write_figures
from benchmarks._ring_held import Held, hold_against_ring
from plait.cli.plan_nominal import read_nominal
from plait.cli.simulate import StrategyName, make_strategy
from plait.cli.solver_output import solver_output_to_stderr
from scheduler.simulation.churn import draw_churn
from scheduler.simulation.engine import Engine
from scheduler.simulation.pool import Pool, nominal_pool
from scheduler.simulation.report import Report, summarise
from scheduler.simulation.trace import Arrivals, conversation

MODEL: Final = "qwen2.5-72b-int4"
FIGURES_72B: Final = {
    "layers": 80,
    "hidden": 8192,
    "vocab": 152_064,
    "layer_bytes": 493682688.0,
    "kv_bytes": 4096,
    "layer_flops": 1_822_425_088,
    "embedding_bytes": 2_491_416_576.0,
}
GPUS: Final = (  # GiB, TFLOPS, GB/s
    (12, 25.5, 360),
    (16, 44.0, 288),
    (24, 71.0, 936),
    (24, 165.0, 1008),
    (32, 209.5, 1792),
)
RTT_MS: Final = {
    "us-east|us-east": 8,
    "us-west|us-west": 8,
    "eu|eu": 10,
    "asia|asia": 15,
    "us-east|us-west": 62,
    "eu|us-east": 80,
    "asia|us-east": 170,
    "eu|us-west": 140,
    "asia|us-west": 110,
    "asia|eu": 200,
}
CASES: Final = (
    # nodes, requests/s, minutes
    (32, 1.0, 30.0),
    (128, 7.0, 10.0),
)
CHURN: Final = 0.05
GOODPUT_BAR: Final = 1.8
RATE_BAR, TTFT_BAR = 0.15, 0.20
SEED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pool under one load."""

    num_nodes: int
    rate_per_s: float
    minutes: float
    churn: float
    num_leaves: int
    plait: Report
    baseline: Report

    @property
    def gain(self) -> float:
        """Goodput by the baseline's."""
        return self.plait.goodput_per_s / max(1e-9, self.baseline.goodput_per_s)

    @property
    def ttft_p95_ratio(self) -> float:
        """The 95th percentile of waits for the first token by the baseline's; NaN where nobody
        had one."""
        return self.plait.ttft_s[1] / max(1e-9, self.baseline.ttft_s[1])


def bars_of(cases: Sequence[Case], held: Sequence[Held]) -> list[Bar]:
    """Goodput and waits against the baseline; the simulator's word against the real ring."""
    bars = []
    for case in cases:
        name = f"{case.num_nodes} nodes, churn {100 * case.churn:g} %"
        bars += [
            Bar(name=f"{name}: goodput / baseline", measured=case.gain, least=GOODPUT_BAR),
            Bar(name=f"{name}: TTFT p95 / baseline", measured=case.ttft_p95_ratio, most=1.0),
        ]
    for one in held:
        for figure, error, most in (
            ("tokens/s", one.rate_error, RATE_BAR),
            ("TTFT", one.ttft_error, TTFT_BAR),
        ):
            name = f"ring, {one.num_requests} requests: {figure} predicted off by"
            bars.append(Bar(name=name, measured=100 * abs(error), most=100 * most, unit="%"))
    return bars


def draw_pool(num_nodes: int, seed: int) -> Mapping[str, object]:
    """Volunteers' machines like the yardsticks'."""
    rng = Random(f"pool {seed}")
    nodes = []
    for i in range(num_nodes):
        gib, tflops, gb_per_s = rng.choice(GPUS)
        nodes.append(
            {
                "id": f"n{i}",
                "gpu": f"{gib} GiB",
                "region": rng.choice(("us-east", "us-west", "eu", "asia")),
                "last_mile_ms": rng.uniform(3.0, 10.0),
                "up_bytes_per_s": rng.choice((6.25e6, 12.5e6, 25e6, 62.5e6)),
                "down_bytes_per_s": rng.choice((25e6, 62.5e6, 125e6)),
                "memory_bytes": gib << 30,
                "flops": tflops * 1e12,
                "memory_bytes_per_s": gb_per_s * 1e9,
            }
        )
    return {"nodes": nodes, "region_rtt_ms": RTT_MS, "models": {MODEL: FIGURES_72B}}


def pool_of(num_nodes: int, yardsticks: Path | None) -> Pool:
    """The yardsticks' pool of that size, or one that is drawn."""
    if yardsticks is None:
        table = draw_pool(num_nodes, 0)
    else:
        table = json.loads((yardsticks / "pools" / f"n{num_nodes}-s0.json").read_text("utf-8"))
    return nominal_pool(read_nominal(table, "pool", MODEL).ground)


def run_case(
    pool: Pool, *, rate_per_s: float, minutes: float, churn: float, seed: int = SEED
) -> Case:
    """Both strategies over the same requests and the same leaves."""
    duration_s = 60.0 * minutes
    num_nodes = len(pool.ground.machines)
    trace = conversation(
        rate_per_s=rate_per_s, duration_s=duration_s, arrivals=Arrivals.BURSTY, seed=seed
    )
    changes = draw_churn(
        num_nodes=num_nodes, leaves_per_hour=churn, duration_s=duration_s, seed=seed
    )
    reports = {}
    for name in StrategyName:
        engine = Engine(pool, trace, make_strategy(name, pool), churn=changes, chunk_tokens=64)
        with solver_output_to_stderr():
            reports[name] = summarise(engine.run(), duration_s=duration_s)
    return Case(
        num_nodes=num_nodes,
        rate_per_s=rate_per_s,
        minutes=minutes,
        churn=churn,
        num_leaves=sum(change.is_leave for change in changes),
        plait=reports[StrategyName.PLAIT],
        baseline=reports[StrategyName.ROUND_ROBIN],
    )


def show_cases(console: Console, cases: list[Case]) -> None:
    """Both strategies side by side."""
    table = Table(
        "nodes", "load", "leaves", "strategy", "goodput/s", "tokens/s", "TTFT s", "TPOT s", "failed"
    )
    for case in cases:
        for name, report in (("plait", case.plait), ("round-robin", case.baseline)):
            table.add_row(
                str(case.num_nodes),
                f"{case.rate_per_s:g}/s, {case.minutes:g} min",
                str(case.num_leaves),
                name,
                f"{report.goodput_per_s:.2f}",
                f"{report.tokens_per_s:.0f}",
                _three(report.ttft_s),
                _three(report.tpot_s),
                str(report.num_failed),
            )
        table.add_row(
            "",
            "",
            "",
            "gain",
            f"{case.gain:.2f}",
            "",
            f"p95 {case.ttft_p95_ratio:.2f}",
            "",
            "",
            end_section=True,
        )
    console.print(table)


def _three(figures: tuple[float, float, float]) -> str:
    return " / ".join("-" if math.isnan(figure) else f"{figure:.2f}" for figure in figures)


def main() -> None:
    """Print both tables; write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yardsticks", type=Path, help="a folder with pools/nN-s0.json")
    parser.add_argument("--no-ring", action="store_true", help="leave the real network out")
    parser.add_argument("--rounds", type=int, default=6, help="of the real network")
    add_options(parser)
    options = parser.parse_args()
    console = Console(width=130)
    cases = []
    for num_nodes, rate, minutes in CASES:
        pool = pool_of(num_nodes, options.yardsticks)
        for churn in (0.0, CHURN):
            cases.append(run_case(pool, rate_per_s=rate, minutes=minutes, churn=churn))
    show_cases(console, cases)
    figures: dict[str, object] = {
        "cases": [{**asdict(case), "gain": case.gain} for case in cases],
    }
    held: list[Held] = []
    if not options.no_ring:
        held = _hold(console, options.rounds)
        figures["ring"] = [asdict(one) for one in held]
    bars = bars_of(cases, held)
    write_figures(options.json, figures, bars)
    judge(bars, console, is_strict=options.strict)


def _hold(console: Console, rounds: int) -> list[Held]:
    held, calibration = hold_against_ring(rounds=rounds, new_tokens=48)
    table = Table(
        "requests", "tokens/s", "predicted", "off", "bar", "TTFT ms", "predicted", "off", "bar"
    )
    for one in held:
        table.add_row(
            str(one.num_requests),
            f"{one.tokens_per_s:.1f}",
            f"{one.predicted_tokens_per_s:.1f}",
            f"{100 * one.rate_error:+.0f} %",
            f"{100 * RATE_BAR:.0f} %",
            f"{1e3 * one.ttft_s:.0f}",
            f"{1e3 * one.predicted_ttft_s:.0f}",
            f"{100 * one.ttft_error:+.0f} %",
            f"{100 * TTFT_BAR:.0f} %",
        )
    console.print(table)
    steps = ", ".join(f"{factor:.2f}" for factor in calibration.steps.values())
    console.print(
        f"calibrated: nodes now take {steps} times as long for a step, and "
        f"{calibration.prompts.factor:.2f} times for a prompt, as when they measured themselves; "
        f"the gateway works {1e3 * calibration.prompts.gateway_s:.0f} ms for a request"
    )
    return held


if __name__ == "__main__":
    main()
