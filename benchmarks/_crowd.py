"""Synthetic pools for timing selection: what a plan leaves behind, and worse."""

from random import Random
from typing import Final

from plait.types import (
    Architecture,
    DType,
    LayerSpan,
    LayerTiming,
    ModelId,
    ModelSpec,
    NodeId,
    NodeProfile,
)
from scheduler.cost import stage_cost
from scheduler.selection import Candidate
from scheduler.selection.places import Places

NUM_LAYERS: Final = 80
MODEL: Final = ModelSpec(
    model_id=ModelId("80-layers"),
    architecture=Architecture.LLAMA,
    num_layers=NUM_LAYERS,
    hidden_size=8192,
    intermediate_size=29_568,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=152_064,
    context_tokens_max=32_768,
    norm_eps=1e-5,
    rope_theta=1e6,
)
HOP_BYTES: Final = 2 * MODEL.hidden_size
REGION_RTT_MS: Final = (
    (8, 62, 80, 170),
    (62, 8, 140, 110),
    (80, 140, 10, 200),
    (170, 110, 200, 15),
)
UP: Final = (6.25e6, 12.5e6, 25e6, 62.5e6)
LAYER_MS: Final = (0.35, 0.6, 0.66, 0.9, 1.9)


def crowd(
    num_nodes: int,
    *,
    num_stages: int = 4,
    is_mixed: bool = False,
    is_aligned: bool = True,
    seed: int = 0,
) -> tuple[list[Candidate], Places]:
    """Nodes of five kinds in four regions, some busy.

    Aligned: every region's nodes hold `num_stages` spans with the same boundaries, as replicas of
    one plan do; else every node's boundaries are its own. Mixed: some downlinks are slower than
    some uplinks.
    """
    rng = Random(seed)
    profiles, spans = [], []
    for i in range(num_nodes):
        layer_ms = LAYER_MS[rng.randrange(5)]
        down = rng.choice((25e6, 62.5e6, 125e6)) if is_mixed else rng.choice((62.5e6, 125e6))
        profiles.append(_profile(f"n{i:05d}", layer_ms, rng.choice(UP), down, rng))
        spans.append(_span(i, num_stages, rng, is_aligned=is_aligned))
    places = Places(
        profiles,
        {p.node_id: (i // num_stages) % 4 for i, p in enumerate(profiles)},
        {p.node_id: rng.uniform(3.0, 10.0) for p in profiles},
        REGION_RTT_MS,
    )
    candidates = [
        Candidate(
            node_id=p.node_id,
            incarnation=1,
            span=spans[i],
            cost=stage_cost(p, MODEL),
            kv_tokens_free=rng.randrange(20_000, 60_000),
            kv_tokens_max=60_000,
            num_requests=rng.randrange(8),
            queue_tokens=rng.choice((0, 0, 0, 200)),
        )
        for i, p in enumerate(profiles)
    ]
    return candidates, places


def _span(i: int, num_stages: int, rng: Random, *, is_aligned: bool) -> LayerSpan:
    width = NUM_LAYERS // num_stages
    if is_aligned:
        start = (i % num_stages) * width
        return LayerSpan(start, start + width)
    start = rng.choice((0, NUM_LAYERS - width, rng.randrange(0, NUM_LAYERS - width)))
    return LayerSpan(start, min(NUM_LAYERS, start + width + rng.randrange(-4, 5)))


def _profile(name: str, layer_ms: float, up: float, down: float, rng: Random) -> NodeProfile:
    timing = LayerTiming(
        model_id=MODEL.model_id,
        decode_layer_ms=layer_ms,
        decode_layer_ms_per_extra=layer_ms / 25,
        prefill_layer_ms_per_token=layer_ms / 12,
        head_ms=3.0,
        embed_ms=0.01,
        step_overhead_ms=1.0,
    )
    return NodeProfile(
        node_id=NodeId(name),
        display_name=name,
        device_kind="cuda",
        device_name="synthetic",
        memory_bytes=24 << 30,
        memory_bytes_per_s=9e11,
        flops_per_s=7e13,
        compute_dtype=DType.BFLOAT16,
        coordinator_rtt_ms=rng.uniform(10.0, 90.0),
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        timings=(timing,),
        addresses=(),
    )
