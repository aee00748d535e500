"""Simulated nodes cut prompts beside decodes by the rule that real ones follow."""

from dataclasses import replace
from random import Random

import pytest

from node.engine.sequence import Sequence, StepItem
from node.engine.step_budget import StepBudget as NodeBudget
from node.ports import SequenceOpen, StageWork
from plait.types import DType, LayerSpan, RequestId
from scheduler.simulation.budget import ROWS_MIN, StepBudget
from scheduler.simulation.engine import Engine
from scheduler.simulation.plait import Plait
from scheduler.simulation.pool import Pool
from scheduler.simulation.state import Prompts, Request
from scheduler.simulation.trace import Arrival
from tests.unit.scheduler.test_simulation import halves, machine, pool


def item(num_tokens: int) -> StepItem:
    request_id = RequestId("r")
    opened = SequenceOpen(
        request_id=request_id,
        epoch=0,
        span=LayerSpan(0, 1),
        kv_tokens=512,
        wire_dtype=DType.FLOAT32,
    )
    return StepItem(Sequence(opened), StageWork(request_id, 0, 0, num_tokens))


def test_a_simulated_node_cuts_prompts_as_a_real_one_does() -> None:
    rng, seen = Random(1), set()
    for _ in range(100):
        real, simulated = NodeBudget(), StepBudget()
        for _ in range(rng.randrange(20)):
            num_decodes = rng.randrange(3)
            rows = 0 if num_decodes and rng.random() < 0.5 else rng.randrange(2, 90)
            took_ms = rng.uniform(1.0, 3.0) + 0.05 * rows
            items = [item(1) for _ in range(num_decodes)] + [item(rows)] * (rows > 0)
            real.record(items, took_ms)
            simulated.record(num_decodes, rows, took_ms / 1e3)
        for is_decoding, is_ready in ((False, False), (True, False), (True, True)):
            allowed = simulated.prompt_rows_max(is_decoding=is_decoding, is_decode_ready=is_ready)
            assert allowed == real.prompt_rows_max(
                is_decoding=is_decoding, is_decode_ready=is_ready
            )
            seen.add(allowed)
    assert {None, 0, 64, ROWS_MIN} < seen


def test_steps_take_the_oldest_prompts_and_cut_the_last_of_them() -> None:
    first, gone, second = (Request(number, Arrival(0.0, 60, 1)) for number in range(3))
    prompts = Prompts()
    for request in (first, gone, second):
        prompts.add((request, 0, 0, 40, False))
        prompts.add((request, 0, 0, 20, True))
    gone.epoch = 1
    assert prompts.numbers() == {0, 2}
    assert prompts.take(100) == [(first, 0, 0, 60, True), (second, 0, 0, 40, False)]
    assert prompts.take(0) == [] and prompts.numbers() == {2}
    assert prompts.take(100) == [(second, 0, 0, 20, True)]
    assert not prompts


def waits_s(of: Pool, *arrivals: Arrival) -> list[float]:
    outcomes = Engine(of, arrivals, Plait(of, halves), chunk_tokens=256, group_max=6).run()
    return [o.ttft_s or 0.0 for o in sorted(outcomes, key=lambda o: o.number)]


def test_a_prompt_beside_decodes_goes_in_small_pieces() -> None:
    """Rows that cost a fifth of a decode's step each: 16 at a time, and a read of the weights for
    every piece."""
    of = replace(pool(machine("a"), machine("b")), prefill_s=(0.001, 0.001))
    (calm_s,) = waits_s(of, Arrival(0.0, 256, 4))
    _, busy_s = waits_s(of, Arrival(0.0, 1, 200), Arrival(1.0, 256, 4))
    assert busy_s > 1.2 * calm_s


def test_a_step_of_a_prompt_reads_the_weights_once() -> None:
    measured = replace(pool(machine("a")), prefill_s=(0.001,))
    one_s = measured.step_s(0, 2, 1, 0, num_heads=0)
    assert measured.step_s(0, 2, 0, 1, num_heads=0) == pytest.approx(one_s)
    assert measured.step_s(0, 2, 0, 11, num_heads=0) == pytest.approx(one_s + 2 * 10 * 0.001)
    assert measured.step_s(0, 2, 1, 10, num_heads=0) == pytest.approx(one_s + 2 * 10 * 0.001)
