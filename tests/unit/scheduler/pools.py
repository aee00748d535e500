"""Nodes and models for the scheduler's tests."""

from plait.types import Architecture, DType, LayerTiming, ModelId, ModelSpec, NodeId, NodeProfile
from scheduler.allocation.problem import AllocationProblem, Placement

MIB = 1 << 20


def tiny_model(num_layers: int = 30, *, model_id: str = "tiny", **changes: int) -> ModelSpec:
    """SmolLM2-135M's shape."""
    return ModelSpec(
        model_id=ModelId(model_id),
        architecture=Architecture.LLAMA,
        num_layers=num_layers,
        hidden_size=changes.get("hidden_size", 576),
        intermediate_size=changes.get("intermediate_size", 1536),
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=changes.get("vocab_size", 49152),
        context_tokens_max=8192,
        norm_eps=1e-5,
        rope_theta=1e5,
        tie_embeddings=True,
    )


def node(
    name: str,
    *,
    memory_mib: float = 400,
    layer_ms: float | None = 1.0,
    head_ms: float = 4.0,
    rtt_ms: float = 1.0,
    model_id: str = "tiny",
    bytes_per_s: float = 1e8,
    up_bytes_per_s: float | None = None,
    down_bytes_per_s: float | None = None,
    dtype: DType = DType.FLOAT32,
) -> NodeProfile:
    """A node with measured times, or none where `layer_ms` is None."""
    timings: tuple[LayerTiming, ...] = ()
    if layer_ms is not None:
        timings = (
            LayerTiming(
                model_id=ModelId(model_id),
                decode_layer_ms=layer_ms,
                decode_layer_ms_per_extra=layer_ms / 8,
                prefill_layer_ms_per_token=layer_ms / 10,
                head_ms=head_ms,
                embed_ms=0.01,
                step_overhead_ms=0.5,
            ),
        )
    return NodeProfile(
        node_id=NodeId(name),
        display_name=name,
        device_kind="cpu",
        device_name="test",
        memory_bytes=int(memory_mib * MIB),
        memory_bytes_per_s=1e10,
        flops_per_s=1e11,
        compute_dtype=dtype,
        coordinator_rtt_ms=rtt_ms,
        up_bytes_per_s=up_bytes_per_s if up_bytes_per_s is not None else bytes_per_s,
        down_bytes_per_s=down_bytes_per_s if down_bytes_per_s is not None else bytes_per_s,
        timings=timings,
        addresses=(f"{name}:1",),
    )


def problem(
    *nodes: NodeProfile,
    models: tuple[ModelSpec, ...] | None = None,
    kv_tokens_min: int = 1024,
    held: tuple[Placement, ...] = (),
    fixed: tuple[str, ...] = (),
    rtt_ms: dict[tuple[str, str], float] | None = None,
) -> AllocationProblem:
    """A problem over the tiny model unless others are given."""
    return AllocationProblem(
        models=models if models is not None else (tiny_model(),),
        nodes=nodes,
        kv_tokens_min=kv_tokens_min,
        wire_dtype=DType.BFLOAT16,
        rtt_ms=tuple(
            ((NodeId(a), NodeId(b)), value) for (a, b), value in sorted((rtt_ms or {}).items())
        ),
        held=held,
        fixed=tuple(NodeId(name) for name in fixed),
        time_limit_s=2.0,
    )
