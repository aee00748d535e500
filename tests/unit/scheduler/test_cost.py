"""The cost model's corners."""

import math
from dataclasses import replace

from plait.types import KvDtype, LayerSpan, NodeId
from scheduler.cost import (
    Links,
    StageFigures,
    chain_rate,
    kv_tokens_room,
    layers_max,
    need_bytes,
    stage_cost,
)
from tests.unit.scheduler.pools import node, tiny_model

SPEC = tiny_model()


def test_measured_times_are_used_and_nonsense_is_not() -> None:
    assert stage_cost(node("a", layer_ms=2.5), SPEC).layer_ms == 2.5
    for bad in (float("nan"), float("inf"), -1.0, 0.0):
        cost = stage_cost(node("a", layer_ms=bad), SPEC)
        assert not cost.is_measured and math.isfinite(cost.layer_ms) and cost.layer_ms > 0


def test_the_roofline_follows_the_slower_of_memory_and_compute() -> None:
    plain = node("a", layer_ms=None)
    slow_memory = replace(plain, memory_bytes_per_s=1e9)
    slow_compute = replace(plain, flops_per_s=1e9)
    base = stage_cost(plain, SPEC).layer_ms
    assert stage_cost(slow_memory, SPEC).layer_ms > base
    assert stage_cost(slow_compute, SPEC).layer_ms > base


def test_memory_counts_weights_kv_and_buffers() -> None:
    profile = node("a", memory_mib=300)
    span = LayerSpan(0, 9)
    room = kv_tokens_room(profile, SPEC, span)
    assert need_bytes(profile, SPEC, span, room) <= profile.memory_bytes
    assert need_bytes(profile, SPEC, span, room + 1) > profile.memory_bytes
    assert layers_max(profile, SPEC, 100, is_first=False, is_last=False) > layers_max(
        profile, SPEC, 100, is_first=True, is_last=False
    )
    assert layers_max(node("a", memory_mib=1), SPEC, 1, is_first=True, is_last=True) == 0


def test_keys_of_a_byte_leave_room_for_more_tokens_and_layers() -> None:
    native = node("a", memory_mib=300)
    small, span = replace(native, kv_dtype=KvDtype.INT8), LayerSpan(0, 9)
    room, before = kv_tokens_room(small, SPEC, span), kv_tokens_room(native, SPEC, span)
    assert room >= before * SPEC.head_dim * 4 // (SPEC.head_dim + 2)
    assert need_bytes(small, SPEC, span, room) <= small.memory_bytes
    assert need_bytes(small, SPEC, span, room + 1) > small.memory_bytes
    assert layers_max(small, SPEC, 4_000, is_first=True, is_last=False) > layers_max(
        native, SPEC, 4_000, is_first=True, is_last=False
    )


def test_unmeasured_pairs_go_by_way_of_the_coordinator() -> None:
    a, b, c = NodeId("a"), NodeId("b"), NodeId("c")
    net = Links([node("a", rtt_ms=10), node("b", rtt_ms=20), node("c", rtt_ms=1)], [((a, b), 3.0)])
    assert net.rtt_ms(a, b) == net.rtt_ms(b, a) == 3.0
    assert net.rtt_ms(a, c) == 11.0 and net.rtt_ms(a, a) == 0.0
    assert net.hop_ms(a, b, 1e6) == 1.5 + 1e3 * 1e6 / 1e8
    net.forget(b)
    assert net.measured() == {}


def test_a_closed_loop_is_limited_by_kv_then_by_the_slowest_stage() -> None:
    def rate(kv_tokens: int, hops_ms: float = 100.0) -> float:
        stage = StageFigures(10.0, 1.0, kv_tokens)
        return chain_rate(
            [stage, stage], hops_ms=hops_ms, slot_ms=0.0, sequence_tokens=100
        ).tokens_per_s

    assert rate(99) == 0.0
    assert math.isclose(rate(100), 1e3 / 120, rel_tol=1e-2)
    assert math.isclose(rate(200), 2e3 / 120, rel_tol=1e-2)
    assert rate(100_000) <= 1e3 * 32 / (10 + 31)
    assert rate(100, hops_ms=10.0) > rate(100)
