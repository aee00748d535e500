"""Pools that are simulated, and how much is asked of them.

The load is a share of what the plan itself promises, the same for every pool: what a fixed number
of requests a second means depends on the machines that happened to be drawn. The share is
`LOAD_SHARE` of the plan's tokens/s, over the mean length of an answer. The plan's rate is that of
decodes alone, at full batches and however long the waits are; prompts here are seven times as long
as answers and come in bursts, so that a pool has its hands full long before: at a sixth plait keeps
its promise to about nine requests of ten, the edge of what it serves. (One and seven requests a
second are 0.126 and 0.138 of the plans of the yardsticks' pools of 32 and 128 nodes.)
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from plait.cli.plan_nominal import read_nominal
from plait.cli.simulate import StrategyName, make_strategy
from plait.cli.solver_output import solver_output_to_stderr
from scheduler.planning.ground import Wish
from scheduler.planning.pool import plan_pool
from scheduler.simulation.churn import draw_churn
from scheduler.simulation.engine import Engine
from scheduler.simulation.pool import Pool, nominal_pool
from scheduler.simulation.report import GOOD_TPOT_S, Report, summarise
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
LOAD_SHARE: Final = 0.17
SAMPLE: Final = 20_000
"""Answers whose mean length is taken."""
SEED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pool under one load."""

    num_nodes: int
    name: str
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


def pool_of(num_nodes: int, yardsticks: Path | None, *, seed: int = 0) -> Pool:
    """The yardsticks' pool of that size, or one that is drawn."""
    if yardsticks is None:
        table = draw_pool(num_nodes, seed)
    else:
        table = json.loads((yardsticks / "pools" / f"n{num_nodes}-s0.json").read_text("utf-8"))
    return nominal_pool(read_nominal(table, "pool", MODEL).ground)


def offered_per_s(pool: Pool) -> float:
    """Requests a second that a pool is asked: see the module's docstring."""
    with solver_output_to_stderr():
        plan = plan_pool(pool.ground, Wish(tpot_s_max=GOOD_TPOT_S))
    sample = conversation(rate_per_s=1.0, duration_s=SAMPLE, arrivals=Arrivals.POISSON, seed=SEED)
    answer_tokens = statistics.mean(arrival.new_tokens for arrival in sample)
    return LOAD_SHARE * plan.rate_per_s / answer_tokens


def run_case(
    pool: Pool, *, name: str, rate_per_s: float, minutes: float, churn: float, seed: int = SEED
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
    for strategy in StrategyName:
        engine = Engine(pool, trace, make_strategy(strategy, pool), churn=changes, chunk_tokens=64)
        with solver_output_to_stderr():
            reports[strategy] = summarise(engine.run(), duration_s=duration_s)
    return Case(
        num_nodes=num_nodes,
        name=name,
        rate_per_s=rate_per_s,
        minutes=minutes,
        churn=churn,
        num_leaves=sum(change.is_leave for change in changes),
        plait=reports[StrategyName.PLAIT],
        baseline=reports[StrategyName.ROUND_ROBIN],
    )
