"""Tensor-parallel groups and weight formats: what they weigh and how long they take."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.types import DType, LayerSpan, NodeProfile, TensorGroup, WeightFormat
from scheduler.cost import (
    BATCH_MAX,
    group_refusal,
    kv_tokens_room,
    layers_max,
    need_bytes,
    stage_cost,
)
from scheduler.curve import Speeds, Work, all_reduce_s, gather_row_s, roofline
from scheduler.planning.measured import curve_of, measured_machine
from tests.unit.scheduler.pools import node, tiny_model

SPEC = tiny_model()
WORK = Work(
    layer_flops=2e9,
    layer_bytes=5e8,
    kv_bytes=4e6,
    head_flops=1e9,
    head_bytes=2.5e8,
    row_bytes=16_384,
    logits_bytes=6e5,
)
rates = st.floats(1e9, 1e15)
links = st.builds(
    TensorGroup,
    degree=st.integers(1, 8),
    link_bytes_per_s=st.floats(1e6, 1e12),
    link_latency_s=st.floats(0.0, 1e-3),
)


def grouped(profile: NodeProfile, group: TensorGroup) -> NodeProfile:
    return replace(
        profile,
        memory_bytes=profile.memory_bytes * group.degree,
        memory_bytes_per_s=profile.memory_bytes_per_s * group.degree,
        flops_per_s=profile.flops_per_s * group.degree,
        group=group,
    )


def naive_star(degree: int, latency_s: float, wire_s: float) -> float:
    """Everybody sends to rank 0, one after the other over its link; then it answers all."""
    return latency_s + sum([wire_s] * (degree - 1)) + latency_s + sum([wire_s] * (degree - 1))


def naive_ring(degree: int, latency_s: float, wire_s: float) -> float:
    """Reduce-scatter, then all-gather: each step moves one of `degree` parts."""
    return sum(latency_s + wire_s / degree for _ in range(2 * (degree - 1)))


@given(group=links, num_bytes=st.floats(1.0, 1e9))
def test_an_all_reduce_is_the_cheaper_of_star_and_ring(
    group: TensorGroup, num_bytes: float
) -> None:
    wire_s = num_bytes / group.link_bytes_per_s
    naive = min(
        make(group.degree, group.link_latency_s, wire_s) for make in (naive_star, naive_ring)
    )
    assert all_reduce_s(group, num_bytes) == pytest.approx(0.0 if group.degree == 1 else naive)


def test_small_messages_go_by_star_and_large_ones_by_ring() -> None:
    group = TensorGroup(degree=8, link_bytes_per_s=1e9, link_latency_s=1e-4)
    assert all_reduce_s(group, 1_000) == pytest.approx(naive_star(8, 1e-4, 1e-6))
    assert all_reduce_s(group, 1e8) == pytest.approx(naive_ring(8, 1e-4, 0.1))


@given(flops=rates, bandwidth=rates, group=links)
def test_a_bigger_batch_is_never_quicker(
    flops: float, bandwidth: float, group: TensorGroup
) -> None:
    curve = roofline(
        Speeds(flops_per_s=flops, bytes_per_s=bandwidth, group=group), WORK, batch_max=32
    )
    steps = [curve.step_s(10, b, is_last=True) for b in (1, 2, 5, 16, 31, 32)]
    assert steps == sorted(steps) and steps[0] > 0.0


@given(flops=rates, bandwidth=rates, quicker=st.floats(1.0, 50.0), group=links)
def test_quicker_devices_are_never_slower(
    flops: float, bandwidth: float, quicker: float, group: TensorGroup
) -> None:
    base = replace(node("a", layer_ms=None), flops_per_s=flops, memory_bytes_per_s=bandwidth)
    for better in (
        replace(base, flops_per_s=flops * quicker),
        replace(base, memory_bytes_per_s=bandwidth * quicker),
    ):
        slow, fast = stage_cost(base, SPEC), stage_cost(better, SPEC)
        for batch in (1, 7, BATCH_MAX):
            before = slow.decode_ms(9, batch, is_first=True, is_last=True)
            assert fast.decode_ms(9, batch, is_first=True, is_last=True) <= before * (1 + 1e-9)


@given(flops=rates, bandwidth=rates, batch=st.sampled_from((1, BATCH_MAX)))
def test_the_line_meets_the_roofline_at_one_and_at_the_largest_batch(
    flops: float, bandwidth: float, batch: int
) -> None:
    profile = replace(node("a", layer_ms=None), flops_per_s=flops, memory_bytes_per_s=bandwidth)
    layer_bytes = SPEC.layer_params * 4
    naive_s = max(
        batch * SPEC.layer_flops_per_token() / (0.5 * flops),
        (layer_bytes + batch * SPEC.kv_bytes_per_token(1, DType.FLOAT32) * 512) / (0.7 * bandwidth),
    )
    cost = stage_cost(profile, SPEC)
    if cost.layer_ms > 1e-3:
        assert cost.decode_ms(1, batch) == pytest.approx(1.0 + 1e3 * naive_s)
        own = curve_of(cost)
        assert 1e3 * own.step_s(7, batch, is_last=False) == pytest.approx(
            cost.decode_ms(7, batch), rel=1e-4
        )


def test_a_group_of_one_is_a_plain_node() -> None:
    plain = node("a", layer_ms=None)
    alone = grouped(plain, TensorGroup(degree=1, link_bytes_per_s=1e9, link_latency_s=1.0))
    assert stage_cost(alone, SPEC) == stage_cost(plain, SPEC)
    for ends in ((True, False), (False, True), (True, True), (False, False)):
        roles = {"is_first": ends[0], "is_last": ends[1]}
        assert layers_max(alone, SPEC, 500, **roles) == layers_max(plain, SPEC, 500, **roles)
    span = LayerSpan(0, 4)
    assert kv_tokens_room(alone, SPEC, span) == kv_tokens_room(plain, SPEC, span)
    assert need_bytes(alone, SPEC, span, 9) == need_bytes(plain, SPEC, span, 9)
    one, two = (
        measured_machine(p, SPEC, stage_cost(p, SPEC), kind="k", region=0, sequence_tokens=9)
        for p in (alone, plain)
    )
    assert one == two


def test_a_group_holds_more_and_waits_for_its_link() -> None:
    plain = node("a", layer_ms=None, memory_mib=120)
    near = grouped(plain, TensorGroup(degree=3, link_bytes_per_s=2e10, link_latency_s=5e-6))
    far = grouped(plain, TensorGroup(degree=3, link_bytes_per_s=1e8, link_latency_s=2e-3))
    roles = {"is_first": False, "is_last": False}
    alone = layers_max(plain, SPEC, 100, **roles)
    assert 3 * alone <= layers_max(near, SPEC, 100, **roles) <= 3 * alone + 2
    assert stage_cost(near, SPEC).layer_ms < stage_cost(plain, SPEC).layer_ms
    extra_ms = stage_cost(far, SPEC).layer_ms - stage_cost(near, SPEC).layer_ms
    assert extra_ms == pytest.approx(
        2e3 * (all_reduce_s(far.group, 576 * 4) - all_reduce_s(near.group, 576 * 4))
    )
    assert gather_row_s(far.group, 1e5) == pytest.approx(2e-3 + 2 / 3 * 1e-3)


def test_heads_that_do_not_divide_are_refused_with_the_reason() -> None:
    group = TensorGroup(degree=2, link_bytes_per_s=1e10, link_latency_s=1e-5)
    assert group_refusal(group, SPEC) == (
        "9 attention heads of tiny cannot be divided among 2 ranks"
    )
    pair = grouped(node("a"), group)
    assert layers_max(pair, SPEC, 1, is_first=False, is_last=False) == 0
    assert kv_tokens_room(pair, SPEC, LayerSpan(0, 1)) < 0
    assert group_refusal(replace(group, degree=3), SPEC) is None


@pytest.mark.parametrize(
    ("kind", "layer_bits", "end_bits"),
    [("native", 32, 32), ("int4", 4.5, 16), ("int8", 8.25, 16), ("q4_0", 4.5, 6.5625)],
)
def test_formats_weigh_what_they_say_in_the_middle_and_at_the_ends(
    kind: str, layer_bits: float, end_bits: float
) -> None:
    # 576 columns are no multiple of 128: with a scale for 64, int4 takes a quarter of a bit more.
    spec = replace(SPEC, weight_format=WeightFormat(kind), tie_embeddings=False)
    dtype, layers = DType.FLOAT32, spec.layer_params * layer_bits / 8
    ends = spec.embedding_params * end_bits / 8
    assert spec.weight_bytes(LayerSpan(3, 5), dtype) == pytest.approx(2 * layers, abs=2)
    whole = 30 * layers + 2 * ends + spec.hidden_size * 4
    assert spec.weight_bytes(spec.whole, dtype) == pytest.approx(whole, abs=40)
    bound = replace(node("a", layer_ms=None), flops_per_s=1e16)
    native = stage_cost(bound, replace(SPEC, weight_format=WeightFormat.NATIVE))
    own = stage_cost(bound, spec)
    assert own.head_ms == pytest.approx(native.head_ms * end_bits / 32)
    assert own.layer_ms <= native.layer_ms
