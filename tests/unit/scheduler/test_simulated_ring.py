"""The simulator against nodes that decide by the engine's own parts, on one clock."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from plait.types import LayerSpan, RequestId
from scheduler.planning.ground import Ground, StageCurve
from scheduler.simulation.engine import Engine
from scheduler.simulation.plait import Plait
from scheduler.simulation.pool import Pool
from scheduler.simulation.state import Pipeline
from scheduler.simulation.trace import Arrival
from tests.unit.scheduler.real_ring import STEP_TOKENS_MAX, RealRing
from tests.unit.scheduler.test_simulation import machine

SPANS = [LayerSpan(0, 10), LayerSpan(10, 22), LayerSpan(22, 30)]
FRAME_S = 0.003
CURVE = StageCurve(
    overhead_s=0.0012,
    compute_s=0.0,
    read_s=0.0024,
    kv_s=0.0002,
    head_compute_s=0.0,
    head_read_s=0.008,
)


def ring() -> Pool:
    """Three processes on one machine, with a small model's times."""
    one = replace(
        machine("a", layers=30),
        curve=CURVE,
        last_mile_s=0.0,
        up_bytes_per_s=1e12,
        down_bytes_per_s=1e12,
        kv_bytes=1e9,
    )
    ground = Ground(
        num_layers=30,
        activation_bytes=2304.0,
        regions=("here",),
        region_rtt_s=((0.0,),),
        machines=tuple(replace(one, node_id=name) for name in "abc"),
    )
    return Pool(
        ground=ground,
        prefill_s=(0.000117,) * 3,
        coordinator_rtt_s=(0.0,) * 3,
        frame_s=FRAME_S,
    )


def planner(_: Pool, members: Sequence[int]) -> list[Pipeline]:
    return [tuple(enumerate(SPANS))] if len(members) == len(SPANS) else []


Times = list[tuple[float, float]]
"""First and last token of each request."""


def both(arrivals: Sequence[Arrival]) -> tuple[Times, Times]:
    pool = ring()
    engine = Engine(pool, arrivals, Plait(pool, planner), chunk_tokens=STEP_TOKENS_MAX, group_max=6)
    done = sorted(engine.run(), key=lambda outcome: outcome.number)
    simulated = [((o.first_s or 0.0) - FRAME_S, o.last_s - FRAME_S) for o in done]
    real = RealRing(pool, SPANS, frame_s=FRAME_S)
    num_opening = 2 * len(SPANS) + 1  # to the last stage and back, and the prompt's own frame
    for number, arrival in enumerate(arrivals):
        there_s = arrival.at_s + num_opening * FRAME_S
        size = arrival.prompt_tokens, arrival.new_tokens
        real.ask(arrival.at_s, there_s, str(number), *size)
    told = real.run()
    names = [RequestId(str(number)) for number in range(len(arrivals))]
    return simulated, [(told[name][0], told[name][-1]) for name in names]


@pytest.mark.parametrize(
    "arrivals",
    [
        [Arrival(0.0, 60, 32)],
        [Arrival(0.0, 60, 32)] * 4,
        [Arrival(0.0, 60, 32), *[Arrival(50.0, 60, 32)] * 4],
        [Arrival(0.05 * i, 60, 32) for i in range(4)],
        [Arrival(0.0, 300, 16), Arrival(0.1, 20, 40)],
    ],
)
def test_few_requests_take_what_they_take_on_real_nodes(arrivals: list[Arrival]) -> None:
    simulated, real = both(arrivals)
    for ours, theirs in zip(simulated, real, strict=True):
        assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_takes_about_what_it_takes_on_real_nodes(seed: int) -> None:
    """More requests than wait for each other, and prompts of all lengths: ties are broken in other
    ways."""
    arrivals = [
        Arrival(0.07 * i, 20 + (37 * i * (seed + 1)) % 300, 10 + (13 * i) % 40) for i in range(10)
    ]
    simulated, real = both(arrivals)
    for at in (0, 1):
        ratios = [a[at] / b[at] for a, b in zip(simulated, real, strict=True)]
        assert statistics.median(ratios) == pytest.approx(1.0, abs=0.05)
        assert all(0.8 < ratio < 1.25 for ratio in ratios)
