"""Batches: sequences of one step do not touch each other, whatever parts of the span they run."""

import struct

import pytest
import torch

from node.core.messages import ROWS_INVALID
from node.engine.device import pick_device
from node.engine.linear import can_pack
from node.engine.runner import Runner
from node.engine.sequence import StepItem
from node.engine.tensor_bytes import bytes_of
from node.engine.wire_rows import rows_from_wire, rows_to_wire
from node.ports import StageResult
from plait.types import DType, LayerSpan, SamplingParams
from tests.unit.engine.kit import (
    KINDS,
    hidden_item,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)

GREEDY = SamplingParams(temperature=0.0)
PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11, 12]]


def generate(runner: Runner, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Greedy ids of all prompts, run side by side."""
    span = runner.stage.spec.whole
    sequences = [make_sequence(span, name=f"r{i}", sampling=GREEDY) for i in range(len(prompts))]
    texts = [list(prompt) for prompt in prompts]
    done = [0] * len(prompts)
    for _ in range(num_tokens):
        items = [
            ids_item(sequence, at, text[at:], sample=True)
            for sequence, text, at in zip(sequences, texts, done, strict=True)
        ]
        done = [len(text) for text in texts]
        for text, result in zip(texts, runner.run(items), strict=True):
            assert result.token_id is not None
            text.append(result.token_id)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_a_batch_gives_each_request_what_it_gets_alone(kind: str) -> None:
    model = tiny_model(kind)
    together = generate(make_runner(model, model.spec.whole), PROMPTS, 12)
    alone = [generate(make_runner(model, model.spec.whole), [p], 12)[0] for p in PROMPTS]
    assert together == alone


def test_hidden_rows_are_equal_bit_for_bit_in_any_batch() -> None:
    model = tiny_model("llama")
    whole = model.spec.whole
    alone = make_runner(model, whole)
    expected = run_rows(alone, [ids_item(make_sequence(whole), 0, PROMPTS[2])])[0]
    together = make_runner(model, whole)
    items = [ids_item(make_sequence(whole, name=f"r{i}"), 0, p) for i, p in enumerate(PROMPTS)]
    rows = run_rows(together, items)[2]
    if can_pack("cpu", torch.float32):
        assert torch.equal(rows, expected)
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma2", "gpt_oss"])
def test_gathered_decodes_equal_single_ones(kind: str) -> None:
    model = tiny_model(kind)
    single = generate(make_runner(model, model.spec.whole, gather_decodes=False), PROMPTS, 12)
    gathered = generate(make_runner(model, model.spec.whole, gather_decodes=True), PROMPTS, 12)
    assert gathered == single


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_run_different_parts_of_the_held_span_in_one_step(kind: str) -> None:
    model = tiny_model(kind)
    runner = make_runner(model, model.spec.whole)
    ids = [3, 1, 4, 1, 5]
    states = model.hidden_states(ids)
    spans = [LayerSpan(0, 3), LayerSpan(1, 2), LayerSpan(0, 1), LayerSpan(1, 3), LayerSpan(2, 3)]
    items: list[StepItem] = []
    for i, span in enumerate(spans):
        sequence = make_sequence(span, name=f"r{i}", kv_tokens=len(ids))
        hidden = bytes_of(states[span.start])
        is_first = span.start == 0
        items.append(
            ids_item(sequence, 0, ids) if is_first else hidden_item(sequence, 0, hidden, len(ids))
        )
    for span, rows in zip(spans, run_rows(runner, items), strict=True):
        torch.testing.assert_close(rows, states[span.end], atol=1e-4, rtol=0)


def test_a_middle_stage_answers_in_the_wire_dtype() -> None:
    model = tiny_model("llama")
    span = LayerSpan(1, 2)
    ids = [3, 1, 4]
    states = model.hidden_states(ids)
    for wire in DType:
        sequence = make_sequence(span, wire_dtype=wire)
        arrived = rows_to_wire(states[1], wire)
        assert arrived is not None
        item = hidden_item(sequence, 0, arrived, 3, dtype=wire, sample=True)
        (result,) = make_runner(model, span).run([item])
        assert result.error is None and result.token_id is None and result.sample
        assert result.hidden is not None and len(result.hidden) == 3 * wire.row_bytes(48)
        sent = rows_from_wire(result.hidden, wire, num_tokens=3, hidden_size=48).float()
        loose = {DType.FLOAT32: 0.0, DType.INT8: 0.1}.get(wire, 3e-2)
        torch.testing.assert_close(sent, states[2], atol=1e-4 + loose, rtol=loose)


def test_int8_rows_that_no_encoder_makes_cost_their_request_alone() -> None:
    model = tiny_model("llama")
    span = LayerSpan(1, 2)
    states = model.hidden_states([3, 1, 4])
    sound = rows_to_wire(states[1], DType.INT8)
    assert sound is not None
    spoilt = sound[:-2] + b"\xff\xff"  # the last outlier is NaN
    items = [
        hidden_item(
            make_sequence(span, name=name, wire_dtype=DType.INT8), 0, arrived, 3, dtype=DType.INT8
        )
        for name, arrived in (("a", spoilt), ("b", sound))
    ]
    bad, good = make_runner(model, span).run(items)
    assert bad.error is not None and bad.error.code == ROWS_INVALID
    assert good.error is None and good.hidden is not None


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.INT8])
def test_a_number_above_what_the_hop_carries_is_an_error(dtype: DType) -> None:
    assert rows_to_wire(torch.full((1, 48), 7e4), dtype) is None
    assert rows_to_wire(torch.full((1, 48), 7e4), DType.FLOAT32) is not None


def test_a_last_stage_samples_only_where_asked() -> None:
    model = tiny_model("llama")
    sequence = make_sequence(model.spec.whole, sampling=GREEDY)
    runner = make_runner(model, model.spec.whole)
    (quiet,) = runner.run([ids_item(sequence, 0, [1, 2])])
    assert quiet.token_id is None and quiet.hidden is None and quiet.error is None
    (drawn,) = runner.run([ids_item(sequence, 2, [3], sample=True)])
    assert drawn.token_id == int(model.logits([1, 2, 3])[-1].argmax())


def test_logprobs_are_the_models_own() -> None:
    model = tiny_model("llama")
    sampling = SamplingParams(temperature=0.7, seed=4, top_logprobs=5)
    sequence = make_sequence(model.spec.whole, sampling=sampling)
    runner = make_runner(model, model.spec.whole)
    (result,) = runner.run([ids_item(sequence, 0, [1, 2, 3], sample=True)])
    expected = torch.log_softmax(model.logits([1, 2, 3])[-1], dim=-1)
    assert result.token_id is not None and result.logprob is not None
    assert result.logprob == pytest.approx(float(expected[result.token_id]), abs=1e-4)
    values, ids = expected.topk(5)
    assert [entry.token_id for entry in result.top_logprobs] == ids.tolist()
    got = [entry.logprob for entry in result.top_logprobs]
    assert got == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("span", [LayerSpan(1, 3), LayerSpan(1, 2)])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_many_rows_that_are_no_numbers_are_their_senders_fault(
    span: LayerSpan, number: str
) -> None:
    model = tiny_model("llama")
    good = bytes_of(model.hidden_states([4, 5, 6])[1])
    bad = struct.pack("<f", float(number)) + good[4:]
    for hidden, count in ((bad, 3), (bad[: len(bad) // 3], 1)):
        sequence = make_sequence(span, sampling=GREEDY)
        (result,) = make_runner(model, span).run([hidden_item(sequence, 0, hidden, count)])
        assert result.error is not None and "arrived" in result.error.message


def test_nan_from_a_neighbour_fails_that_request_alone() -> None:
    model = tiny_model("llama")
    span = LayerSpan(1, 3)
    runner = make_runner(model, span)
    good = bytes_of(model.hidden_states([4])[1])
    bad = struct.pack("<f", float("nan")) + good[4:]
    poisoned, fine = _run_two(runner, span, bad, good)
    assert poisoned.error is not None and poisoned.error.code == "nan_activations"
    assert "arrived" in poisoned.error.message
    assert fine.error is None and fine.token_id is not None


def test_overflow_of_the_wire_dtype_is_an_error_of_this_stage() -> None:
    model = tiny_model("llama")
    span = LayerSpan(1, 2)
    huge = bytes_of(model.hidden_states([4])[1] * 1e7)
    sequence = make_sequence(span, wire_dtype=DType.FLOAT16)
    (result,) = make_runner(model, span).run([hidden_item(sequence, 0, huge, 1)])
    assert result.error is not None and result.error.code == "nan_activations"
    assert "computed" in result.error.message and result.hidden is None


def test_bfloat16_stays_near_float32() -> None:
    model = tiny_model("qwen3")
    runner = make_runner(model, model.spec.whole, device=pick_device("cpu", DType.BFLOAT16))
    rows = run_rows(runner, [ids_item(make_sequence(model.spec.whole), 0, PROMPTS[2])])[0]
    assert rows.dtype is torch.bfloat16
    expected = model.hidden_states(PROMPTS[2])[-1]
    error = (rows.float() - expected).norm() / expected.norm()
    assert float(error) < 0.03


def _run_two(runner: Runner, span: LayerSpan, first: bytes, second: bytes) -> list[StageResult]:
    return runner.run(
        [
            hidden_item(make_sequence(span, name=name, sampling=GREEDY), 0, hidden, 1, sample=True)
            for name, hidden in (("a", first), ("b", second))
        ]
    )
