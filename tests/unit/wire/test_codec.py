"""What goes over the wire comes back equal; nonsense is refused with its name."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import FrameError
from plait.types import (
    Activation,
    Architecture,
    Constraint,
    ConstraintKind,
    DraftHealth,
    DraftState,
    DType,
    FinishReason,
    GuessTotals,
    HeldSpan,
    KvDtype,
    LayerSpan,
    LayerTiming,
    ModelId,
    ModelSource,
    ModelSpec,
    NodeId,
    NodeLoad,
    NodeProfile,
    Reason,
    RequestId,
    RopeScaling,
    RouteTicket,
    SamplingParams,
    SourceKind,
    StepTotals,
    TicketStage,
)
from plait.types.weights import WeightTotals
from plait.wire import codec, tickets
from plait.wire.sampling import sampling_from_proto, sampling_to_proto
from plait.wire.v1 import common_pb2, control_pb2

width = st.integers(1, 1 << 20)
positive = st.floats(1e-9, 1e12, allow_nan=False)
scalings = st.builds(
    RopeScaling,
    kind=st.sampled_from(["linear", "llama3", "yarn", "dynamic", "longrope"]),
    factor=positive,
    low_freq_factor=positive,
    high_freq_factor=positive,
    original_context_tokens=width,
    attention_factor=st.none() | positive,
    beta_fast=positive,
    beta_slow=positive,
    truncates=st.booleans(),
    short_factors=st.lists(positive, max_size=3).map(tuple),
    long_factors=st.lists(positive, max_size=3).map(tuple),
)
some_layers = st.lists(st.just(0), max_size=1).map(tuple)
specs = st.builds(
    ModelSpec,
    model_id=st.text(max_size=20).map(ModelId),
    architecture=st.sampled_from(Architecture),
    num_layers=width,
    hidden_size=width,
    intermediate_size=width,
    num_heads=width,
    num_kv_heads=width,
    head_dim=width,
    vocab_size=width,
    context_tokens_max=width,
    norm_eps=positive,
    rope_theta=positive,
    rope_scaling=st.none() | scalings,
    tie_embeddings=st.booleans(),
    attention_bias=st.booleans(),
    attention_output_bias=st.booleans(),
    mlp_bias=st.booleans(),
    qk_norm=st.booleans(),
    sliding_window_tokens=st.none() | width,
    eos_token_ids=st.lists(width, max_size=4).map(tuple),
    full_attention_layers=some_layers,
    rotary_dim=st.none(),
    local_rope_theta=st.none() | positive,
    unrotated_layers=some_layers,
    attention_scale=st.none() | positive,
    attention_softcap=st.none() | positive,
    attention_sinks=st.booleans(),
    post_norms=st.booleans(),
    activation=st.sampled_from(Activation),
    num_experts=st.just(8),
    experts_per_token=st.integers(1, 8),
    renormalises_experts=st.booleans(),
    embedding_scale=st.none() | positive,
    logit_softcap=st.none() | positive,
)
A_SPEC = ModelSpec(
    model_id=ModelId("a"),
    architecture=Architecture.LLAMA,
    num_layers=32,
    hidden_size=64,
    intermediate_size=64,
    num_heads=1,
    num_kv_heads=1,
    head_dim=64,
    vocab_size=64,
    context_tokens_max=64,
    norm_eps=1e-5,
    rope_theta=1e4,
)
spans = st.tuples(st.integers(0, 500), st.integers(1, 500)).map(
    lambda pair: LayerSpan(pair[0], pair[0] + pair[1])
)


@pytest.mark.parametrize(
    "change",
    [
        {"full_attention_layers": [32]},
        {"unrotated_layers": [0] * 33},
        {"rotary_dim": 66},
        {"rotary_dim": 3},
        {"activation": "relu"},
        {"num_experts": 8, "experts_per_token": 9},
        {"num_experts": 8},
        {"num_experts": 1 << 30, "experts_per_token": 1},
        {"attention_softcap": float("nan")},
        {"embedding_scale": 0.0},
    ],
)
def test_a_shape_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    message = codec.model_spec_to_proto(A_SPEC)
    message.MergeFrom(common_pb2.ModelSpec(**change))
    with pytest.raises(FrameError):
        codec.model_spec_from_proto(message)


@given(specs)
def test_a_model_spec_survives(spec: ModelSpec) -> None:
    assert codec.model_spec_from_proto(codec.model_spec_to_proto(spec)) == spec


@given(
    st.builds(
        SamplingParams,
        temperature=positive,
        top_k=width,
        top_p=positive,
        min_p=positive,
        seed=st.integers(0, 2**64 - 1),
        top_logprobs=st.none() | st.integers(0, 20),
        logit_bias=st.dictionaries(
            st.integers(0, 2**32 - 1), st.floats(-100, 100, width=32), max_size=5
        ).map(lambda biases: tuple(sorted(biases.items()))),
        constraint=st.none()
        | st.builds(Constraint, st.sampled_from(ConstraintKind), st.text(max_size=20)),
    )
)
def test_sampling_survives(sampling: SamplingParams) -> None:
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


def test_absent_sampling_fields_are_the_defaults() -> None:
    assert sampling_from_proto(common_pb2.SamplingParams()) == SamplingParams()


@given(spans, st.builds(ModelSource, kind=st.sampled_from(SourceKind), name=st.text(max_size=9)))
def test_spans_and_sources_survive(span: LayerSpan, source: ModelSource) -> None:
    assert codec.span_from_proto(codec.span_to_proto(span)) == span
    assert codec.model_source_from_proto(codec.model_source_to_proto(source)) == source


def test_held_span_profile_and_load_survive() -> None:
    held = HeldSpan(
        model_id=ModelId("m"),
        span=LayerSpan(3, 9),
        allocation_epoch=4,
        digest="ab",
        weight_bytes=5,
        read_bytes=6,
        kv_tokens_max=7,
    )
    assert codec.held_span_from_proto(codec.held_span_to_proto(held)) == held
    load = NodeLoad(
        kv_tokens_reserved=1,
        num_requests=2,
        stage_ms=3.5,
        tokens_total=4,
        sent_bytes_total=5,
        frames_dropped_total=6,
        weights=WeightTotals(
            hub_bytes=1, neighbour_bytes=2, served_bytes=3, rejected_chunks=4, refused_requests=5
        ),
        guesses=GuessTotals(
            trips=1, guessed=2, accepted=3, guessed_by_model=4, accepted_by_model=5
        ),
        draft=DraftHealth(model_id="m", state=DraftState.LOST, why="died", num_failed=6),
        queue_tokens=7,
        steps=StepTotals(
            decode_steps=8,
            decode_ms=9.5,
            decode_rows=10,
            decode_layers=11,
            prefill_steps=12,
            prefill_ms=13.5,
            prefill_layer_tokens=14,
        ),
    )
    assert codec.load_from_proto(codec.load_to_proto(load)) == load
    message = codec.load_to_proto(load)
    message.draft.state = "dreaming"
    assert codec.load_from_proto(message).draft is None, "a word of a newer version"
    assert profile_round_trip(profile()) == profile()


def profile(**changes: float) -> NodeProfile:
    timing = LayerTiming(
        model_id=ModelId("m"),
        decode_layer_ms=changes.get("decode_layer_ms", 1.0),
        decode_layer_ms_per_extra=0.25,
        prefill_layer_ms_per_token=0.1,
        head_ms=2.0,
        embed_ms=0.01,
        step_overhead_ms=0.5,
    )
    return NodeProfile(
        node_id=NodeId("n1"),
        display_name="attic",
        device_kind="cpu",
        device_name="a cpu",
        memory_bytes=1 << 30,
        memory_bytes_per_s=1e10,
        flops_per_s=1e11,
        compute_dtype=DType.FLOAT32,
        coordinator_rtt_ms=20.0,
        up_bytes_per_s=1e6,
        down_bytes_per_s=changes.get("down_bytes_per_s", 1e7),
        timings=(timing,),
        addresses=("127.0.0.1:1",),
    )


def profile_round_trip(node: NodeProfile) -> NodeProfile:
    return codec.profile_from_proto(
        codec.profile_to_proto(node),
        node_id=node.node_id,
        display_name=node.display_name,
        addresses=node.addresses,
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["decode_layer_ms", "down_bytes_per_s"])
def test_a_speed_that_is_no_speed_is_refused(field: str, value: float) -> None:
    with pytest.raises(FrameError):
        profile_round_trip(profile(**{field: value}))


def test_nothing_is_computed_in_the_dtype_of_hops_alone() -> None:
    message = codec.profile_to_proto(profile())
    message.compute_dtype = codec.dtype_to_proto(DType.INT8)
    with pytest.raises(FrameError, match="computed in int8"):
        codec.profile_from_proto(message, node_id=NodeId("n"), display_name="", addresses=())


def test_what_keys_are_kept_in_is_told_and_unknown_words_are_refused() -> None:
    small = replace(profile(), kv_dtype=KvDtype.INT8)
    assert profile_round_trip(small) == small
    message = codec.profile_to_proto(small)
    for word, kv_dtype in (("", KvDtype.NATIVE), ("int8", KvDtype.INT8)):
        message.kv_dtype = word
        found = codec.profile_from_proto(
            message, node_id=NodeId("n"), display_name="", addresses=()
        )
        assert found.kv_dtype is kv_dtype
    message.kv_dtype = "int1"
    with pytest.raises(FrameError, match="int1"):
        codec.profile_from_proto(message, node_id=NodeId("n"), display_name="", addresses=())


def test_a_ticket_may_name_a_dtype_for_each_hop() -> None:
    stages = tuple(
        TicketStage(
            node_id=NodeId(name),
            incarnation=1,
            span=LayerSpan(start, start + 1),
            addresses=(),
            wire_dtype=dtype,
        )
        for start, (name, dtype) in enumerate([("a", DType.INT8), ("b", None)])
    )
    ticket = RouteTicket(
        ticket_id="t",
        network_id="n",
        request_id=RequestId("r"),
        epoch=1,
        model_id=ModelId("m"),
        stages=stages,
        kv_tokens=1,
        issued_unix_ms=0,
        expires_unix_ms=1,
        wire_dtype=DType.FLOAT16,
    )
    assert tickets.decode_payload(tickets.ticket_payload(ticket).SerializeToString()) == ticket
    assert [ticket.hop_dtype(0), ticket.hop_dtype(1)] == [DType.INT8, DType.FLOAT16]


def test_nonsense_is_refused() -> None:
    with pytest.raises(FrameError):
        codec.span_from_proto(common_pb2.LayerSpan(start=3, end=3))
    with pytest.raises(FrameError):
        codec.dtype_from_proto(99)
    with pytest.raises(FrameError):
        codec.model_spec_from_proto(common_pb2.ModelSpec(architecture="mamba"))
    with pytest.raises(FrameError):
        codec.model_spec_from_proto(common_pb2.ModelSpec(architecture="llama"))
    with pytest.raises(FrameError):
        codec.model_source_from_proto(common_pb2.ModelSource(kind="carrier pigeon"))
    with pytest.raises(FrameError):
        sampling_from_proto(common_pb2.SamplingParams(temperature=math.nan))
    with pytest.raises(FrameError):
        sampling_from_proto(common_pb2.SamplingParams(constraint=common_pb2.Constraint()))
    with pytest.raises(FrameError):
        long = common_pb2.Constraint(regex="a" * 65_537)
        sampling_from_proto(common_pb2.SamplingParams(constraint=long))
    twice = [common_pb2.LogitBias(token_id=1, bias=1.0)] * 2
    for biases in (twice, [common_pb2.LogitBias(token_id=1, bias=math.nan)]):
        with pytest.raises(FrameError):
            sampling_from_proto(common_pb2.SamplingParams(logit_bias=biases))
    with pytest.raises(FrameError):
        codec.load_from_proto(control_pb2.Heartbeat(stage_ms=-1.0))


def test_reasons_and_finish_reasons_survive() -> None:
    reason = Reason(code="kv_full", message="no room")
    assert codec.reason_from_proto(codec.reason_to_proto(reason, 8)) == reason
    for finish in (None, *FinishReason):
        assert codec.finish_reason_from_proto(codec.finish_reason_to_proto(finish)) == finish
    assert codec.finish_reason_from_proto(77) is None
    for dtype in DType:
        assert codec.dtype_from_proto(codec.dtype_to_proto(dtype)) == dtype
