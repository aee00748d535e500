"""The simulated model and its machines in plait's own words, for phase 2."""

from typing import Final

from plait.types import (
    Architecture,
    DType,
    LayerTiming,
    ModelId,
    ModelSpec,
    NodeId,
    NodeProfile,
)
from scheduler.simulation.pool import Pool

MODEL_ID: Final = ModelId("simulated")


def simulated_spec(pool: Pool) -> ModelSpec:
    """A model whose layers weigh and cache what the pool's do, in 2-byte elements."""
    ground = pool.ground
    machine = ground.machines[0]
    hidden = round(ground.activation_bytes / 2)
    kv_width = machine.kv_sequence_bytes / pool.sequence_tokens / 4
    heads = max(1, round(kv_width / 64))
    attention = 4 * hidden * heads * 64
    params = machine.layer_bytes / 2
    return ModelSpec(
        model_id=MODEL_ID,
        architecture=Architecture.LLAMA,
        num_layers=ground.num_layers,
        hidden_size=hidden,
        intermediate_size=max(1, round((params - attention) / (3 * hidden))),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=64,
        vocab_size=max(1, round(machine.first_bytes / 2 / hidden)),
        context_tokens_max=1 << 20,
        norm_eps=1e-5,
        rope_theta=1e4,
    )


def simulated_profile(pool: Pool, index: int, spec: ModelSpec) -> NodeProfile:
    """A machine as plait would have measured it."""
    machine = pool.ground.machines[index]
    curve = machine.curve
    layer_s, many_s = curve.layer_s(1), curve.layer_s(16)
    prefill_s = pool.prefill_s[index] or curve.compute_s + curve.sync_row_s
    timing = LayerTiming(
        model_id=spec.model_id,
        decode_layer_ms=1e3 * layer_s,
        decode_layer_ms_per_extra=1e3 * (many_s - layer_s) / 15,
        prefill_layer_ms_per_token=1e3 * prefill_s,
        head_ms=1e3 * max(curve.head_compute_s, curve.head_read_s),
        embed_ms=0.0,
        step_overhead_ms=1e3 * curve.overhead_s,
    )
    return NodeProfile(
        node_id=NodeId(machine.node_id),
        display_name=machine.node_id,
        device_kind="simulated",
        device_name=machine.kind,
        memory_bytes=int(machine.room_bytes),
        memory_bytes_per_s=1e12,
        flops_per_s=1e14,
        compute_dtype=DType.BFLOAT16,
        coordinator_rtt_ms=1e3 * pool.coordinator_rtt_s[index],
        up_bytes_per_s=machine.up_bytes_per_s,
        down_bytes_per_s=machine.down_bytes_per_s,
        timings=(timing,),
        addresses=(),
    )
