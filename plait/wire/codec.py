"""Vocabulary <-> protobuf. `x_from_proto` raises FrameError on what a stranger should not send."""

import math
from dataclasses import asdict
from typing import Final

from plait.errors import FrameError
from plait.types import (
    Architecture,
    CachedSpan,
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
    SourceKind,
    StepTotals,
    WeightFormat,
)
from plait.types.weights import WeightTotals
from plait.wire.drafts import draft_from_proto, draft_to_proto
from plait.wire.families import add_family, rope_from_proto, rope_to_proto, with_family
from plait.wire.v1 import common_pb2, control_pb2

_DTYPES: Final = {
    DType.FLOAT32: common_pb2.DTYPE_FLOAT32,
    DType.FLOAT16: common_pb2.DTYPE_FLOAT16,
    DType.BFLOAT16: common_pb2.DTYPE_BFLOAT16,
    DType.INT8: common_pb2.DTYPE_INT8,
}
_DTYPES_BACK: Final = {value: key for key, value in _DTYPES.items()}
_FINISH: Final = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
    FinishReason.TOOL_CALLS: common_pb2.FINISH_REASON_TOOL_CALLS,
}
_FINISH_BACK: Final = {value: key for key, value in _FINISH.items()}


def dtype_to_proto(dtype: DType) -> common_pb2.DType.ValueType:
    return _DTYPES[dtype]


def dtype_from_proto(value: int) -> DType:
    try:
        return _DTYPES_BACK[value]  # type: ignore[index]
    except KeyError:
        raise FrameError(f"unknown dtype {value}", reason="dtype_unknown") from None


def kv_dtype_from_proto(word: str) -> KvDtype:
    """Of a node that says nothing, NATIVE. Raises FrameError."""
    try:
        return KvDtype(word or KvDtype.NATIVE)
    except ValueError:
        raise FrameError(f"nobody keeps keys and values as {word[:32]!r}") from None


def compute_dtype_from_proto(value: int) -> DType:
    """Of what nodes compute in: INT8 is for hops alone."""
    dtype = dtype_from_proto(value)
    if dtype is DType.INT8:
        raise FrameError("nothing is computed in int8", reason="dtype_unknown")
    return dtype


def finish_reason_to_proto(reason: FinishReason | None) -> common_pb2.FinishReason.ValueType:
    return common_pb2.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH[reason]


def finish_reason_from_proto(value: int) -> FinishReason | None:
    """None for "not finished" and for reasons of a newer protocol."""
    return _FINISH_BACK.get(value)  # type: ignore[call-overload, no-any-return]


def span_to_proto(span: LayerSpan) -> common_pb2.LayerSpan:
    return common_pb2.LayerSpan(start=span.start, end=span.end)


def span_from_proto(message: common_pb2.LayerSpan) -> LayerSpan:
    try:
        return LayerSpan(message.start, message.end)
    except ValueError as error:
        raise FrameError(str(error), reason="span_invalid") from None


def reason_to_proto(reason: Reason, code: int = 0) -> common_pb2.Status:
    """`code` is a canonical gRPC code (google.rpc.Code)."""
    return common_pb2.Status(code=code, reason=reason.code, message=reason.message)


def reason_from_proto(message: common_pb2.Status) -> Reason:
    return Reason(code=message.reason[:64] or "unknown", message=message.message[:2000])


def model_spec_to_proto(spec: ModelSpec) -> common_pb2.ModelSpec:
    message = common_pb2.ModelSpec(
        model_id=spec.model_id,
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        context_tokens_max=spec.context_tokens_max,
        norm_eps=spec.norm_eps,
        rope_theta=spec.rope_theta,
        tie_embeddings=spec.tie_embeddings,
        attention_bias=spec.attention_bias,
        attention_output_bias=spec.attention_output_bias,
        mlp_bias=spec.mlp_bias,
        qk_norm=spec.qk_norm,
        eos_token_ids=spec.eos_token_ids,
        weight_format=spec.weight_format,
    )
    if spec.sliding_window_tokens is not None:
        message.sliding_window_tokens = spec.sliding_window_tokens
    if spec.rope_scaling is not None:
        message.rope_scaling.CopyFrom(rope_to_proto(spec.rope_scaling))
    add_family(message, spec)
    return message


def model_spec_from_proto(message: common_pb2.ModelSpec) -> ModelSpec:
    """Raises FrameError for an architecture this version does not know or a width of zero."""
    try:
        architecture = Architecture(message.architecture)
    except ValueError:
        raise FrameError(
            f"unknown architecture {message.architecture!r}", reason="architecture_unknown"
        ) from None
    widths = (
        message.num_layers,
        message.hidden_size,
        message.intermediate_size,
        message.num_heads,
        message.num_kv_heads,
        message.head_dim,
        message.vocab_size,
        message.context_tokens_max,
    )
    if min(widths) < 1:
        raise FrameError("a width of the model is zero", reason="model_invalid")
    spec = ModelSpec(
        model_id=ModelId(message.model_id),
        architecture=architecture,
        num_layers=message.num_layers,
        hidden_size=message.hidden_size,
        intermediate_size=message.intermediate_size,
        num_heads=message.num_heads,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        vocab_size=message.vocab_size,
        context_tokens_max=message.context_tokens_max,
        norm_eps=message.norm_eps,
        rope_theta=message.rope_theta,
        rope_scaling=(
            rope_from_proto(message.rope_scaling) if message.HasField("rope_scaling") else None
        ),
        tie_embeddings=message.tie_embeddings,
        attention_bias=message.attention_bias,
        attention_output_bias=message.attention_output_bias,
        mlp_bias=message.mlp_bias,
        qk_norm=message.qk_norm,
        sliding_window_tokens=(
            message.sliding_window_tokens if message.HasField("sliding_window_tokens") else None
        ),
        eos_token_ids=tuple(message.eos_token_ids),
        weight_format=_weight_format_from_proto(message.weight_format),
    )
    return with_family(spec, message)


def _weight_format_from_proto(word: str) -> WeightFormat:
    """Raises FrameError for a format of a newer version: computing with other numbers than the rest
    of the network would break what it promises."""
    try:
        return WeightFormat(word or WeightFormat.NATIVE)
    except ValueError:
        raise FrameError(f"unknown weight format {word!r}", reason="format_unknown") from None


def model_source_to_proto(source: ModelSource) -> common_pb2.ModelSource:
    return common_pb2.ModelSource(
        kind=source.kind,
        name=source.name,
        revision=source.revision or "",
        digest=source.digest or "",
    )


def model_source_from_proto(message: common_pb2.ModelSource) -> ModelSource:
    try:
        kind = SourceKind(message.kind)
    except ValueError:
        raise FrameError(f"unknown source kind {message.kind!r}", reason="source_unknown") from None
    return ModelSource(
        kind=kind,
        name=message.name,
        revision=message.revision or None,
        digest=message.digest or None,
    )


def held_span_to_proto(held: HeldSpan) -> control_pb2.HeldSpan:
    return control_pb2.HeldSpan(
        model_id=held.model_id,
        span=span_to_proto(held.span),
        allocation_epoch=held.allocation_epoch,
        digest=held.digest,
        weight_bytes=held.weight_bytes,
        read_bytes=held.read_bytes,
        kv_tokens_max=held.kv_tokens_max,
        weight_format=held.weight_format,
        layout=held.layout,
    )


def held_span_from_proto(message: control_pb2.HeldSpan) -> HeldSpan:
    return HeldSpan(
        model_id=ModelId(message.model_id),
        span=span_from_proto(message.span),
        allocation_epoch=message.allocation_epoch,
        digest=message.digest,
        weight_bytes=message.weight_bytes,
        read_bytes=message.read_bytes,
        kv_tokens_max=message.kv_tokens_max,
        weight_format=_weight_format_from_proto(message.weight_format),
        layout=message.layout[:64],
    )


def cached_span_to_proto(cached: CachedSpan) -> control_pb2.CachedSpan:
    return control_pb2.CachedSpan(
        model_id=cached.model_id, span=span_to_proto(cached.span), digest=cached.digest
    )


def cached_span_from_proto(message: control_pb2.CachedSpan) -> CachedSpan:
    return CachedSpan(
        model_id=ModelId(message.model_id),
        span=span_from_proto(message.span),
        digest=message.digest,
    )


def profile_to_proto(profile: NodeProfile) -> control_pb2.Profiled:
    return control_pb2.Profiled(
        device_kind=profile.device_kind,
        device_name=profile.device_name,
        memory_bytes=profile.memory_bytes,
        memory_bytes_per_s=profile.memory_bytes_per_s,
        flops_per_s=profile.flops_per_s,
        compute_dtype=dtype_to_proto(profile.compute_dtype),
        coordinator_rtt_ms=profile.coordinator_rtt_ms,
        up_bytes_per_s=profile.up_bytes_per_s,
        down_bytes_per_s=profile.down_bytes_per_s,
        timings=[
            control_pb2.LayerTiming(
                model_id=timing.model_id,
                decode_layer_ms=timing.decode_layer_ms,
                decode_layer_ms_per_extra=timing.decode_layer_ms_per_extra,
                prefill_layer_ms_per_token=timing.prefill_layer_ms_per_token,
                head_ms=timing.head_ms,
                embed_ms=timing.embed_ms,
                step_overhead_ms=timing.step_overhead_ms,
            )
            for timing in profile.timings
        ],
        refused_models=profile.refused_models,
        kv_dtype=profile.kv_dtype,
    )


def profile_from_proto(
    message: control_pb2.Profiled,
    *,
    node_id: NodeId,
    display_name: str,
    addresses: tuple[str, ...],
) -> NodeProfile:
    """The identity comes from the stream's certificate, never from the message.

    Raises FrameError for a speed that is negative or not a number.
    """
    timings = tuple(
        LayerTiming(
            model_id=ModelId(timing.model_id),
            decode_layer_ms=_speed("decode_layer_ms", timing.decode_layer_ms),
            decode_layer_ms_per_extra=_speed("per_extra", timing.decode_layer_ms_per_extra),
            prefill_layer_ms_per_token=_speed("prefill", timing.prefill_layer_ms_per_token),
            head_ms=_speed("head_ms", timing.head_ms),
            embed_ms=_speed("embed_ms", timing.embed_ms),
            step_overhead_ms=_speed("step_overhead_ms", timing.step_overhead_ms),
        )
        for timing in message.timings
    )
    return NodeProfile(
        node_id=node_id,
        display_name=display_name,
        device_kind=message.device_kind[:32],
        device_name=message.device_name[:128],
        memory_bytes=message.memory_bytes,
        memory_bytes_per_s=_speed("memory_bytes_per_s", message.memory_bytes_per_s),
        flops_per_s=_speed("flops_per_s", message.flops_per_s),
        compute_dtype=compute_dtype_from_proto(message.compute_dtype),
        coordinator_rtt_ms=_speed("coordinator_rtt_ms", message.coordinator_rtt_ms),
        up_bytes_per_s=_speed("up_bytes_per_s", message.up_bytes_per_s),
        down_bytes_per_s=_speed("down_bytes_per_s", message.down_bytes_per_s),
        timings=timings,
        addresses=addresses,
        refused_models=tuple(ModelId(name[:256]) for name in message.refused_models[:64]),
        kv_dtype=kv_dtype_from_proto(message.kv_dtype),
    )


def load_to_proto(load: NodeLoad) -> control_pb2.Heartbeat:
    return control_pb2.Heartbeat(
        kv_tokens_reserved=load.kv_tokens_reserved,
        num_requests=load.num_requests,
        stage_ms=load.stage_ms,
        tokens_total=load.tokens_total,
        sent_bytes_total=load.sent_bytes_total,
        frames_dropped_total=load.frames_dropped_total,
        queue_tokens=load.queue_tokens,
        steps=control_pb2.StepTotals(
            decode_steps=load.steps.decode_steps,
            decode_ms=load.steps.decode_ms,
            decode_rows=load.steps.decode_rows,
            decode_layers=load.steps.decode_layers,
            prefill_steps=load.steps.prefill_steps,
            prefill_ms=load.steps.prefill_ms,
            prefill_layer_tokens=load.steps.prefill_layer_tokens,
        ),
        weights=control_pb2.WeightTotals(**asdict(load.weights)),
        guesses=control_pb2.GuessTotals(**asdict(load.guesses)),
        draft=draft_to_proto(load.draft),
        held_up_ms=load.held_up_ms,
    )


def load_from_proto(message: control_pb2.Heartbeat) -> NodeLoad:
    return NodeLoad(
        kv_tokens_reserved=message.kv_tokens_reserved,
        num_requests=message.num_requests,
        stage_ms=_speed("stage_ms", message.stage_ms),
        tokens_total=message.tokens_total,
        sent_bytes_total=message.sent_bytes_total,
        frames_dropped_total=message.frames_dropped_total,
        queue_tokens=message.queue_tokens,
        steps=StepTotals(
            decode_steps=message.steps.decode_steps,
            decode_ms=_speed("decode_ms", message.steps.decode_ms),
            decode_rows=message.steps.decode_rows,
            decode_layers=message.steps.decode_layers,
            prefill_steps=message.steps.prefill_steps,
            prefill_ms=_speed("prefill_ms", message.steps.prefill_ms),
            prefill_layer_tokens=message.steps.prefill_layer_tokens,
        ),
        weights=WeightTotals(
            hub_bytes=message.weights.hub_bytes,
            neighbour_bytes=message.weights.neighbour_bytes,
            served_bytes=message.weights.served_bytes,
            rejected_chunks=message.weights.rejected_chunks,
            refused_requests=message.weights.refused_requests,
        ),
        guesses=GuessTotals(
            trips=message.guesses.trips,
            guessed=message.guesses.guessed,
            accepted=message.guesses.accepted,
            guessed_by_model=message.guesses.guessed_by_model,
            accepted_by_model=message.guesses.accepted_by_model,
        ),
        draft=draft_from_proto(message),
        held_up_ms=_speed("held_up_ms", message.held_up_ms),
    )


def _speed(name: str, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise FrameError(f"{name} must be a number of at least 0", reason="measurement_invalid")
    return value
