"""The simulator: times that can be worked out by hand, and what happens when nodes leave."""

import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from plait.types import LayerSpan
from scheduler.planning.ground import Ground, Machine, StageCurve
from scheduler.simulation.churn import Change, draw_churn
from scheduler.simulation.engine import DETECT_S, Engine
from scheduler.simulation.patience import Patience
from scheduler.simulation.plait import Plait, mend
from scheduler.simulation.pool import Pool, nominal_pool
from scheduler.simulation.report import Outcome, percentile, summarise
from scheduler.simulation.round_robin import RoundRobin, greedy_pipelines
from scheduler.simulation.state import Pipeline
from scheduler.simulation.strategy import Strategy
from scheduler.simulation.trace import Arrival, Arrivals, conversation

LAYERS = 4


def machine(name: str, *, region: int = 0, layers: int = 2, kv_sequences: int = 10) -> Machine:
    """10 ms a step and layer-independent: overhead 2 ms, 4 ms a layer, the head 1 ms."""
    return Machine(
        node_id=name,
        kind="test",
        region=region,
        last_mile_s=0.001,
        up_bytes_per_s=1e6,
        down_bytes_per_s=1e6,
        room_bytes=float(layers),
        kv_bytes=float(kv_sequences * layers),
        layer_bytes=1.0,
        kv_sequence_bytes=1.0,
        first_bytes=0.0,
        last_bytes=0.0,
        both_bytes=0.0,
        curve=StageCurve(
            overhead_s=0.002,
            compute_s=0.0001,
            read_s=0.004,
            kv_s=0.0,
            head_compute_s=0.0,
            head_read_s=0.001,
        ),
    )


def pool(*machines: Machine) -> Pool:
    ground = Ground(
        num_layers=LAYERS,
        activation_bytes=1_000.0,
        regions=("eu", "us"),
        region_rtt_s=((0.008, 0.098), (0.098, 0.008)),
        machines=machines,
    )
    return nominal_pool(ground)


def halves(of: Pool, members: Sequence[int]) -> list[Pipeline]:
    """A planner that pairs machines in order."""
    chosen = list(members)
    spans = (LayerSpan(0, 2), LayerSpan(2, 4))
    return [tuple(zip(chosen[i : i + 2], spans, strict=True)) for i in range(0, len(chosen) - 1, 2)]


def run(
    of: Pool, strategy: Strategy, *arrivals: Arrival, churn: Sequence[Change] = ()
) -> dict[int, Outcome]:
    engine = Engine(of, arrivals, strategy, churn=churn, chunk_tokens=64, load_bytes_per_s=1.0)
    return {outcome.number: outcome for outcome in engine.run()}


TWO = (machine("a"), machine("b"))
HOP_S = 0.001 + (0.008 + 0.002) / 2
TOKEN_S = 0.002 + 0.008 + HOP_S + 0.002 + 0.008 + 0.001 + (0.008 + 0.002) / 2


def test_a_lone_request_takes_what_its_parts_take() -> None:
    of = pool(*TWO)
    done = run(of, Plait(of, halves), Arrival(1.0, 1, 11))[0]
    to_gateway_s = (0.008 + 0.001 + 0.002) / 2
    opening_s = 2 * (to_gateway_s + (0.008 + 0.002) / 2)
    first_s = opening_s + TOKEN_S - (0.008 + 0.002) / 2 + 2 * to_gateway_s
    assert done.ttft_s == pytest.approx(first_s)
    assert done.tpot_s == pytest.approx(TOKEN_S)
    assert done.is_good and done.num_generated == 11 and done.num_attempts == 1


def test_chunks_of_a_prompt_follow_each_other_along_the_chain() -> None:
    of = pool(*TWO)
    done = run(of, Plait(of, halves), Arrival(0.0, 256, 2))[0]
    chunk_s = 0.002 + 2 * 64 * 0.0001
    transfer_s = 0.064
    # Four chunks: the link is slower than the stages and sets the pace.
    least_s = chunk_s + 4 * transfer_s + chunk_s
    assert done.ttft_s is not None and least_s < done.ttft_s < least_s + 0.08


def test_sequences_that_wait_share_a_step() -> None:
    of = pool(*TWO)
    arrivals = [Arrival(0.0, 1, 50) for _ in range(4)]
    done = run(of, Plait(of, halves), *arrivals)
    together_s = max(o.last_s for o in done.values())
    alone_s = run(of, Plait(of, halves), arrivals[0])[0].last_s
    assert together_s < 1.5 * alone_s


def test_a_group_that_shared_a_step_stays_together_where_nodes_are_patient() -> None:
    """Three prompts leave one step one by one, as their bytes pass; the next stage waits."""
    arrivals = [Arrival(0.0, 20, 3)] * 4
    quick = pool(*(replace(m, up_bytes_per_s=1e9, down_bytes_per_s=1e9) for m in TWO))
    torn = Engine(quick, arrivals, Plait(quick, halves)).run()
    whole = Engine(quick, arrivals, Plait(quick, halves), group_max=6).run()
    assert len({outcome.first_s for outcome in torn}) == 3
    assert len({outcome.first_s for outcome in whole}) == 2


def test_patience_ends_with_its_limit_and_groups_that_part_are_let_go() -> None:
    patience = Patience(group_max=6)
    patience.ended(2, 0.02, 0.0)
    patience.started([1, 2])
    assert patience.waits_until(1.0, {1}, 2) == pytest.approx(1.01)
    again = patience.waits_until(1.01, {1}, 2)  # a moment for anybody else
    assert again == pytest.approx(1.01 + 0.03 * 0.02)
    assert patience.waits_until(1.011, {1}, 2) is None
    patience.started([1])
    patience.ended(1, 0.02, 2.0)
    until_s = patience.waits_until(2.0, {1}, 2)
    assert until_s is not None and until_s < 2.001
    assert patience.waits_until(2.0, {1, 2}, 2) is None


def test_a_lone_request_is_waited_for_by_nobody() -> None:
    alone = [Arrival(0.0, 20, 5)]
    plain = Engine(pool(*TWO), alone, Plait(pool(*TWO), halves)).run()
    patient = Engine(pool(*TWO), alone, Plait(pool(*TWO), halves), group_max=6).run()
    assert plain == patient


def test_groups_that_never_meet_are_merged_after_some_steps_and_less_and_less_often() -> None:
    patience = Patience(group_max=6)
    waits = []
    for step in range(40):
        patience.started([1])
        patience.ended(1, 0.01, float(step))
        until_s = patience.waits_until(float(step), {1}, 2)
        while until_s is not None:
            waits.append((step, round(until_s - step, 4)))
            until_s = patience.waits_until(until_s, {1}, 2)
    assert [step for step, wait_s in waits if wait_s > 0.01] == [7, 23]
    patience.opened(0.0, 2)
    assert patience.waits_until(100.0, {1}, 2) == pytest.approx(100.0003)


def test_requests_that_come_at_once_pass_the_gateway_one_by_one() -> None:
    busy = replace(pool(*TWO), gateway_s=0.1)
    free = {o.number: o.first_s for o in Engine(pool(*TWO), [Arrival(0.0, 1, 1)], _both()).run()}
    for count in (1, 3):
        engine = Engine(busy, [Arrival(0.0, 1, 1)] * count, Plait(busy, halves), group_max=6)
        firsts_s = [outcome.first_s or 0.0 for outcome in engine.run()]
        assert min(firsts_s) == pytest.approx((free[0] or 0.0) + 0.1)
        assert max(firsts_s) == pytest.approx((free[0] or 0.0) + 0.1 * count)


def _both() -> Plait:
    return Plait(pool(*TWO), halves)


def test_kv_is_reserved_whole_and_whoever_finds_none_waits_or_gives_up() -> None:
    of = pool(machine("a", kv_sequences=2), machine("b", kv_sequences=1))
    # One sequence of 2,048 tokens fits on b, whatever a has.
    long = Arrival(0.0, 10, 1_500)
    done = run(of, Plait(of, halves), long, Arrival(0.1, 10, 1_500), Arrival(0.2, 10, 500))
    assert done[0].is_finished
    second_first_s = done[1].first_s
    assert second_first_s is None or second_first_s > done[0].last_s
    assert not done[1].is_finished and done[1].last_s == pytest.approx(30.1)
    assert done[2].is_finished or done[2].last_s > 30.0


def test_a_spare_takes_the_place_of_a_node_that_left_and_nobody_else_moves() -> None:
    of = pool(*TWO, machine("far", region=1), machine("near"))
    strategy = Plait(of, lambda p, members: halves(p, members)[:1] if len(members) > 2 else [])
    churn = [Change(1.0, 1, is_leave=True)]
    done = run(of, strategy, Arrival(0.0, 10, 200), churn=churn)[0]
    assert done.is_finished and done.num_attempts == 2
    assert mend(of, halves(of, [0, 1])[0], [2, 3], {0, 2, 3}) == (
        (0, LayerSpan(0, 2)),
        (3, LayerSpan(2, 4)),
    )
    assert done.last_s > 1.0 + DETECT_S


def test_the_baseline_tears_a_pipeline_down_and_its_survivors_wait_for_a_join() -> None:
    of = pool(*TWO, machine("c"), machine("d"))
    leave, join = Change(1.0, 1, is_leave=True), Change(60.0, 1, is_leave=False)
    early, late = Arrival(0.0, 10, 200), Arrival(200.0, 10, 200)
    done = run(of, RoundRobin(), early, late, churn=[leave, join])
    assert done[0].is_finished and done[0].num_attempts == 2 and done[1].is_finished
    only = run(pool(*TWO), RoundRobin(), early, churn=[leave])[0]
    assert not only.is_finished and only.last_s == pytest.approx(1.0 + DETECT_S + 30.0)


def test_greedy_pipelines_fit_and_cover() -> None:
    of = pool(*(machine(f"m{i}", layers=1 + i % 3) for i in range(9)))
    pipelines = greedy_pipelines(of, list(range(9)))
    used = [i for p in pipelines for i, _ in p]
    assert len(used) == len(set(used)) and pipelines
    for pipeline in pipelines:
        edges = [0, *(span.end for _, span in pipeline)]
        assert [span.start for _, span in pipeline] == edges[:-1] and edges[-1] == LAYERS
        assert all(len(s) <= of.ground.machines[i].room_bytes for i, s in pipeline)


def test_traces_have_the_lengths_and_the_bursts_they_promise() -> None:
    trace = conversation(rate_per_s=10.0, duration_s=600.0, arrivals=Arrivals.BURSTY, seed=1)
    assert 0.85 < len(trace) / 6_000 < 1.15
    assert 950 < statistics.median(a.prompt_tokens for a in trace) < 1_090
    assert 118 < statistics.median(a.new_tokens for a in trace) < 140
    for arrivals, low, high in ((Arrivals.BURSTY, 1.8, 2.2), (Arrivals.POISSON, 0.9, 1.1)):
        times = [
            a.at_s
            for a in conversation(rate_per_s=10.0, duration_s=600.0, arrivals=arrivals, seed=2)
        ]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert low < statistics.pstdev(gaps) / statistics.mean(gaps) < high


def test_churn_is_drawn_at_its_rate_and_in_order() -> None:
    changes = draw_churn(num_nodes=1_000, leaves_per_hour=0.05, duration_s=7_200.0, seed=3)
    assert 70 < sum(c.is_leave for c in changes) < 130
    assert list(changes) == sorted(changes)
    assert draw_churn(num_nodes=9, leaves_per_hour=0.0, duration_s=9e9, seed=0) == ()


def test_percentiles_are_observed_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.95) == 3.0


SCRIPT = """
from tests.unit.scheduler.test_simulation import digest_of
print(digest_of())
"""


def digest_of() -> str:
    """Of a run in which everything happens."""
    of = pool(*(machine(f"m{i}", region=i % 2, layers=2 + i % 2) for i in range(8)))
    trace = conversation(rate_per_s=2.0, duration_s=30.0, arrivals=Arrivals.BURSTY, seed=5)
    churn = draw_churn(num_nodes=8, leaves_per_hour=30.0, duration_s=30.0, seed=5)
    assert churn
    engine = Engine(of, trace, Plait(of, halves), churn=churn, load_bytes_per_s=10.0)
    return summarise(engine.run(), duration_s=30.0).digest


@pytest.mark.slow
def test_the_same_seed_gives_the_same_digest_whatever_the_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "random"):
        answer = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        digests.add(answer.stdout.strip())
    assert len(digests) == 1 and digests != {""}
