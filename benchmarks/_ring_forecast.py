"""What the simulator says of a running network, from what its nodes measured of themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.core.view import NetworkView, NodeView
from plait.types import DType, LayerSpan, LayerTiming, ModelSpec, NodeId, NodeProfile
from scheduler.calibration import calibrated, repriced
from scheduler.cost import Links, stage_cost
from scheduler.simulation.engine import Engine
from scheduler.simulation.plait import Plait
from scheduler.simulation.pool import Pool, measured_pool
from scheduler.simulation.report import Outcome
from scheduler.simulation.state import Pipeline
from scheduler.simulation.trace import Arrival

CPU_GROUP_MAX: Final = 6
"""Requests on a CPU that wait for each other (node.engine.host)."""
CPU_CHUNK_TOKENS: Final = 256
"""Prompt tokens of a step on a CPU (node.engine.host)."""
FRAME_S: Final = 0.002
"""A frame between processes on one machine, beside its way: packed, sent with TLS, woken up for,
checked. Measured once on two quiet cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFit:
    """How much longer prompts take than nodes measured, and the gateway's work for a request."""

    factor: float
    gateway_s: float


def forecast(
    view: NetworkView,
    spec: ModelSpec,
    factors: Mapping[str, float],
    prompts: PromptFit,
    *,
    num_requests: int,
    prompt_tokens: int,
    new_tokens: int,
) -> list[Outcome]:
    """Equal requests that come at once over the one chain that the network has. `factors` is how
    much slower each node's steps are now than it measured itself."""
    nodes = chain_nodes(view)
    profiles = [
        _scaled(profile_of(n, spec), spec, factors.get(n.node_id, 1.0), prompts.factor)
        for n in nodes
    ]
    links = Links(profiles)
    for node in nodes:
        for other, rtt_ms in node.neighbour_rtt_ms:
            links.set_rtt(NodeId(node.node_id), NodeId(other), rtt_ms)
    pool = measured_pool(
        profiles,
        spec,
        links,
        hop_bytes=spec.hidden_size * 4,
        frame_s=FRAME_S,
        gateway_s=prompts.gateway_s,
    )
    chain: Pipeline = tuple(
        (i, LayerSpan(*n.span)) for i, n in enumerate(nodes) if n.span is not None
    )

    def planner(_: Pool, members: Sequence[int]) -> list[Pipeline]:
        return [chain] if len(members) == len(chain) else []

    arrivals = [Arrival(0.0, prompt_tokens, new_tokens)] * num_requests
    engine = Engine(
        pool,
        arrivals,
        Plait(pool, planner),
        chunk_tokens=CPU_CHUNK_TOKENS,
        group_max=CPU_GROUP_MAX,
    )
    return engine.run()


def fit_prompts(
    view: NetworkView,
    spec: ModelSpec,
    factors: Mapping[str, float],
    seen_s: Mapping[int, float],
) -> PromptFit:
    """What makes lone requests of the shortest and the longest prompt of `seen_s` (tokens to TTFT)
    come out as seen: their difference says how quick prompts are, the rest is the gateway's."""
    short, long = min(seen_s), max(seen_s)

    def ttft_s(tokens: int, fit: PromptFit) -> float:
        (outcome,) = forecast(
            view, spec, factors, fit, num_requests=1, prompt_tokens=tokens, new_tokens=2
        )
        return outcome.ttft_s or 0.0

    low, high = 0.05, 20.0
    for _ in range(24):
        fit = PromptFit(factor=(low + high) / 2, gateway_s=0.0)
        is_quick = ttft_s(long, fit) - ttft_s(short, fit) < seen_s[long] - seen_s[short]
        low, high = (fit.factor, high) if is_quick else (low, fit.factor)
    bare = PromptFit(factor=(low + high) / 2, gateway_s=0.0)
    rest_s = max(0.0, seen_s[short] - ttft_s(short, bare))
    return PromptFit(factor=bare.factor, gateway_s=rest_s)


def chain_nodes(view: NetworkView) -> list[NodeView]:
    """The nodes in the order of their layers."""
    return sorted((n for n in view.nodes if n.span is not None), key=lambda n: n.span or (0, 0))


def step_ms(node: NodeView, spec: ModelSpec) -> float:
    """A decode step of one sequence, by what the node measured."""
    start, end = node.span or (0, 1)
    cost = stage_cost(profile_of(node, spec), spec)
    return cost.decode_ms(end - start, 1, is_first=start == 0, is_last=end == spec.num_layers)


def profile_of(node: NodeView, spec: ModelSpec) -> NodeProfile:
    """What the node measured, as the operator's view tells it."""
    timing = LayerTiming(
        model_id=spec.model_id,
        decode_layer_ms=node.decode_layer_ms,
        decode_layer_ms_per_extra=node.decode_layer_ms_per_extra,
        prefill_layer_ms_per_token=node.prefill_layer_ms_per_token,
        head_ms=node.head_ms,
        embed_ms=0.0,
        step_overhead_ms=node.step_overhead_ms,
    )
    return NodeProfile(
        node_id=NodeId(node.node_id),
        display_name=node.display_name,
        device_kind=node.device_kind,
        device_name=node.device_name,
        memory_bytes=node.memory_bytes,
        memory_bytes_per_s=1e10,
        flops_per_s=1e11,
        compute_dtype=DType(node.compute_dtype),
        coordinator_rtt_ms=node.coordinator_rtt_ms,
        up_bytes_per_s=node.up_bytes_per_s,
        down_bytes_per_s=node.down_bytes_per_s,
        timings=(timing,),
        addresses=(),
    )


def _scaled(
    profile: NodeProfile, spec: ModelSpec, factor: float, prompt_factor: float
) -> NodeProfile:
    return repriced(profile, spec, calibrated(stage_cost(profile, spec), (factor, prompt_factor)))
