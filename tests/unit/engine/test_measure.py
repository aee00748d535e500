"""Measurements end soon and say something, whatever the model's size."""

from dataclasses import replace

import pytest

from node.engine.measure import measure_device, measure_layer
from tests.unit.engine.kit import CPU, tiny_model


def test_a_device_has_a_bandwidth_and_a_rate() -> None:
    report = measure_device(CPU, 64 << 20)
    assert report.device_kind == "cpu" and report.device_name
    assert report.memory_bytes == 64 << 20
    assert report.memory_bytes_per_s > 1e8 and report.flops_per_s > 1e8


def test_a_layer_is_measured_in_all_its_uses() -> None:
    timing = measure_layer(CPU, tiny_model("mistral").spec)
    assert timing.decode_layer_ms > 0 and timing.prefill_layer_ms_per_token > 0
    assert timing.decode_layer_ms_per_extra >= 0
    assert timing.head_ms > 0 and timing.embed_ms > 0 and timing.step_overhead_ms > 0


@pytest.mark.parametrize("kind", ["phi3-longrope", "gemma3", "gpt_oss"])
def test_a_layer_of_every_kind_is_measured(kind: str) -> None:
    timing = measure_layer(CPU, tiny_model(kind).spec)
    assert timing.decode_layer_ms > 0 and timing.prefill_layer_ms_per_token > 0


@pytest.mark.slow
def test_a_layer_of_many_experts_is_measured_by_those_that_a_token_meets() -> None:
    many = replace(
        tiny_model("mixtral").spec,
        hidden_size=512,
        intermediate_size=1024,
        num_experts=1024,
        experts_per_token=1,
    )
    assert many.layer_params * 4 > 4 << 30  # would be neither quick nor possible everywhere
    assert measure_layer(CPU, many).decode_layer_ms > 0


@pytest.mark.slow
def test_a_layer_too_large_to_build_is_measured_as_a_narrow_one() -> None:
    huge = replace(
        tiny_model("llama").spec,
        hidden_size=1024,
        intermediate_size=200_000,
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        vocab_size=500_000,
    )
    assert huge.layer_params * 4 > 2 << 30  # over 2 GiB: would not be quick
    timing = measure_layer(CPU, huge)
    assert timing.decode_layer_ms > 10 * timing.step_overhead_ms
