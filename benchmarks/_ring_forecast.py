"""What the simulator says of a running network, from what its nodes measured of themselves and from
lone requests.

How much longer steps and prompts take than measured comes from the nodes' own reports, what a frame
takes from what lone requests need for a token beside that, and the gateway's work from how long it
is until their chains are open.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks._ring_rounds import LONE_TOKENS, Answer, Round, Steps
from coordinator.core.view import NetworkView, NodeView
from plait.types import DType, LayerSpan, LayerTiming, ModelSpec, NodeId, NodeProfile
from scheduler.calibration import calibrated, repriced
from scheduler.cost import Links, StageCost, stage_cost
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
GATEWAY_SHARE: Final = 0.3
"""Of the time until a chain is open, what is the gateway's own at least: chains of requests that
come at once open so much of it apart, however quick frames are."""
AFTER_S: Final = 10_000.0
"""Long after the request that nodes learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How much longer steps and prompts take than each node measured; what a frame takes beside
    its way: packed, sent with TLS, woken up for, checked; the gateway's work for a request."""

    factors: Mapping[str, tuple[float, float]]
    frame_s: float = 0.0
    gateway_s: float = 0.0


def fit(view: NetworkView, spec: ModelSpec, rounds: Sequence[Round]) -> Fit:
    """From the lone requests of `rounds` and what nodes did for them."""
    factors = {node.node_id: _factors(node, spec, rounds) for node in chain_nodes(view)}
    bare = Fit(factors=factors)
    alone = [answer for one in rounds for answer in one.lone.values()]
    tpot_s = statistics.median(
        statistics.mean(answer.tpot_s for answer in one.lone.values()) for one in rounds
    )
    routed_s = statistics.median(answer.routed_s for answer in alone)
    foretold = lone_answer(
        view, spec, bare, prompt_tokens=min(LONE_TOKENS), new_tokens=len(alone[0].times_s)
    )
    frame_s = max(0.0, tpot_s - foretold.tpot_s) / len(factors)
    rest_s = routed_s - 2 * len(factors) * frame_s
    gateway_s = max(GATEWAY_SHARE * routed_s, rest_s)
    return Fit(factors=factors, frame_s=frame_s, gateway_s=gateway_s)


def lone_answer(
    view: NetworkView, spec: ModelSpec, by: Fit, *, prompt_tokens: int, new_tokens: int
) -> Answer:
    """A lone request, as the simulator has it."""
    outcomes = forecast(
        view, spec, by, num_requests=1, prompt_tokens=prompt_tokens, new_tokens=new_tokens
    )
    return answers_of(outcomes)[0]


def answers_of(outcomes: Sequence[Outcome]) -> list[Answer]:
    """Tokens in equal steps from the first to the last of each."""
    answers: list[Answer] = []
    for outcome in outcomes:
        first_s, num_gaps = outcome.ttft_s or 0.0, outcome.num_generated - 1
        gap_s = (outcome.last_s - outcome.arrival.at_s - first_s) / max(1, num_gaps)
        times_s = tuple(first_s + i * gap_s for i in range(num_gaps + 1))
        answers.append(Answer(routed_s=0.0, times_s=times_s))
    return answers


def forecast(
    view: NetworkView,
    spec: ModelSpec,
    by: Fit,
    *,
    num_requests: int,
    prompt_tokens: int,
    new_tokens: int,
) -> list[Outcome]:
    """Equal requests that come at once over the one chain that the network has, to nodes that know
    from an earlier one how long steps take."""
    nodes = chain_nodes(view)
    profiles = [_scaled(profile_of(n, spec), spec, by.factors[n.node_id]) for n in nodes]
    links = Links(profiles)
    for node in nodes:
        for other, rtt_ms in node.neighbour_rtt_ms:
            links.set_rtt(NodeId(node.node_id), NodeId(other), rtt_ms)
    pool = measured_pool(
        profiles,
        spec,
        links,
        hop_bytes=spec.hidden_size * 4,
        frame_s=by.frame_s,
        gateway_s=by.gateway_s,
    )
    chain: Pipeline = tuple(
        (i, LayerSpan(*n.span)) for i, n in enumerate(nodes) if n.span is not None
    )

    def planner(_: Pool, members: Sequence[int]) -> list[Pipeline]:
        return [chain] if len(members) == len(chain) else []

    earlier = Arrival(0.0, prompt_tokens, new_tokens)
    engine = Engine(
        pool,
        [earlier, *[replace(earlier, at_s=AFTER_S)] * num_requests],
        Plait(pool, planner),
        chunk_tokens=CPU_CHUNK_TOKENS,
        group_max=CPU_GROUP_MAX,
    )
    return [outcome for outcome in engine.run() if outcome.number > 0]


def chain_nodes(view: NetworkView) -> list[NodeView]:
    """The nodes in the order of their layers."""
    return sorted((n for n in view.nodes if n.span is not None), key=lambda n: n.span or (0, 0))


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


def _factors(node: NodeView, spec: ModelSpec, rounds: Sequence[Round]) -> tuple[float, float]:
    """Median over the rounds: decode steps of one sequence, and what further prompt tokens add."""
    cost = stage_cost(profile_of(node, spec), spec)
    pairs = [_ratios(cost, node, spec, one.steps) for one in rounds]
    decode = statistics.median(pair[0] for pair in pairs)
    return decode, statistics.median(pair[1] for pair in pairs)


def _ratios(cost: StageCost, node: NodeView, spec: ModelSpec, steps: Steps) -> tuple[float, float]:
    """Observed by predicted in one round."""
    start, end = node.span or (0, 1)
    before, now = steps[node.node_id]
    is_last = end == spec.num_layers
    num_decodes = now.decode_steps - before.decode_steps
    predicted_ms = cost.decode_ms(end - start, 1, is_first=start == 0, is_last=is_last)
    decode = (now.decode_ms - before.decode_ms) / num_decodes / predicted_ms
    num_prompts = now.prefill_steps - before.prefill_steps
    layer_tokens = now.prefill_layer_tokens - before.prefill_layer_tokens
    predicted_ms = cost.prompts_ms(num_prompts, num_prompts * (end - start), layer_tokens)
    predicted_ms += num_prompts * cost.head_ms if is_last else 0.0
    return decode, (now.prefill_ms - before.prefill_ms) / predicted_ms


def _scaled(profile: NodeProfile, spec: ModelSpec, factors: tuple[float, float]) -> NodeProfile:
    return repriced(profile, spec, calibrated(stage_cost(profile, spec), factors))
