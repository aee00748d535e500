"""The one cost model: what a stage, a hop and a chain cost. Milliseconds, bytes and tokens.

Measured timings where a node has them, a roofline from its bandwidth and matmul rate where it has
not. Figures come from strangers: what is not finite or not positive is replaced, never trusted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from plait.types import DType, LayerSpan, ModelSpec, NodeId, NodeProfile, TensorGroup
from scheduler.curve import (
    BYTES_PER_S_MIN,
    FLOPS_PER_S_MIN,
    LOGIT_BYTES,
    Speeds,
    Work,
    all_reduce_s,
    roofline,
)

BATCH_MAX: Final = 32
"""Sequences that a stage is assumed to run in one step at most."""
CONTEXT_TOKENS: Final = 1024
"""Length of the sequence that plans reckon with."""
PREFILL_CHUNK_TOKENS: Final = 512
SAMPLED_ROWS: Final = 16
BASE_BUFFER_BYTES: Final = 16 << 20
MS_MIN: Final = 1e-4
RTT_MS_MAX: Final = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Linear times of one model on one node. A step of a batch of b over k layers takes
    `overhead + k * (layer + (b - 1) * layer_per_extra)`, and the head on the last stage. Further
    tokens of a prompt add `prefill_layer_ms_per_token` each, in the place of the extra."""

    overhead_ms: float
    layer_ms: float
    layer_ms_per_extra: float
    prefill_layer_ms_per_token: float
    head_ms: float
    embed_ms: float
    is_measured: bool

    def decode_ms(
        self, num_layers: int, batch: float, *, is_first: bool = False, is_last: bool = False
    ) -> float:
        """One decode step of `batch` sequences."""
        total = self.overhead_ms
        total += num_layers * (self.layer_ms + max(0.0, batch - 1.0) * self.layer_ms_per_extra)
        if is_first:
            total += self.embed_ms
        return total + self.head_ms if is_last else total

    def prefill_ms(self, num_layers: int, tokens: int, *, is_last: bool = False) -> float:
        """A prompt of `tokens`, in chunks."""
        chunks = max(1, math.ceil(tokens / PREFILL_CHUNK_TOKENS))
        total = self.prompts_ms(chunks, chunks * num_layers, num_layers * tokens)
        return total + self.head_ms if is_last else total

    def prompts_ms(self, num_steps: int, num_layers: int, layer_tokens: int) -> float:
        """Steps of one prompt each, over `num_layers` in all and so many tokens in each of these;
        without the head."""
        further = max(0, layer_tokens - num_layers)
        total = num_steps * self.overhead_ms + num_layers * self.layer_ms
        return total + further * self.prefill_layer_ms_per_token


def stage_cost(profile: NodeProfile, spec: ModelSpec) -> StageCost:
    """Times of `spec` on this node: measured, or a roofline where nothing sane was measured."""
    timing = profile.timing(spec.model_id)
    if timing is not None:
        figures = (
            timing.decode_layer_ms,
            timing.decode_layer_ms_per_extra,
            timing.prefill_layer_ms_per_token,
            timing.head_ms,
            timing.embed_ms,
            timing.step_overhead_ms,
        )
        is_sane = all(math.isfinite(f) and f >= 0.0 for f in figures)
        if is_sane and timing.decode_layer_ms > 0.0:
            return StageCost(
                overhead_ms=timing.step_overhead_ms,
                layer_ms=max(MS_MIN, timing.decode_layer_ms),
                layer_ms_per_extra=min(timing.decode_layer_ms_per_extra, timing.decode_layer_ms),
                prefill_layer_ms_per_token=max(MS_MIN / 100, timing.prefill_layer_ms_per_token),
                head_ms=timing.head_ms,
                embed_ms=timing.embed_ms,
                is_measured=True,
            )
    return _roofline(profile, spec)


def _roofline(profile: NodeProfile, spec: ModelSpec) -> StageCost:
    """The line through a roofline's curve at one sequence and at the largest batch."""
    dtype = profile.compute_dtype
    speeds = Speeds(
        flops_per_s=sane(profile.flops_per_s, FLOPS_PER_S_MIN),
        bytes_per_s=sane(profile.memory_bytes_per_s, BYTES_PER_S_MIN),
        group=profile.group,
    )
    row_bytes = spec.hidden_size * dtype.num_bytes
    work = Work(
        layer_flops=spec.layer_flops_per_token(),
        layer_bytes=spec.layer_bytes(dtype),
        kv_bytes=profile.kv_bytes_per_token(spec, 1) * CONTEXT_TOKENS / 2,
        head_flops=2 * spec.embedding_params,
        head_bytes=spec.embedding_bytes(dtype),
        row_bytes=row_bytes,
        logits_bytes=LOGIT_BYTES * spec.vocab_size,
    )
    curve = roofline(speeds, work, batch_max=BATCH_MAX)
    layer_ms = max(MS_MIN, 1e3 * curve.layer_s(1))
    full_ms = max(layer_ms, 1e3 * curve.layer_s(BATCH_MAX))
    chunk_s = all_reduce_s(profile.group, PREFILL_CHUNK_TOKENS * row_bytes)
    full_chunk_ms = 1e3 * (PREFILL_CHUNK_TOKENS * curve.compute_s + 2 * chunk_s)
    prefill_ms = (full_chunk_ms - layer_ms) / (PREFILL_CHUNK_TOKENS - 1)
    return StageCost(
        overhead_ms=1e3 * curve.overhead_s,
        layer_ms=layer_ms,
        layer_ms_per_extra=(full_ms - layer_ms) / (BATCH_MAX - 1),
        prefill_layer_ms_per_token=max(MS_MIN / 100, prefill_ms),
        head_ms=1e3 * max(curve.head_compute_s, curve.head_read_s),
        embed_ms=1e3 * all_reduce_s(profile.group, row_bytes),
        is_measured=False,
    )


def sane(figure: float, least: float) -> float:
    """`figure`, or `least` where it is not finite or below it."""
    return figure if math.isfinite(figure) and figure > least else least


# --- memory -----------------------------------------------------------------------------------


def buffer_bytes(spec: ModelSpec, dtype: DType, *, is_last: bool) -> int:
    """Activations of one step and a tensor's copy while loading; logits on the last stage.

    The node's engine reckons the same way; a test holds the two together.
    """
    row_width = 4 * spec.hidden_size + 3 * spec.num_heads * spec.head_dim
    row_width += 3 * spec.intermediate_size
    total = BASE_BUFFER_BYTES + PREFILL_CHUNK_TOKENS * row_width * max(4, dtype.num_bytes)
    total += 8 * spec.hidden_size * spec.intermediate_size
    return total + 8 * SAMPLED_ROWS * spec.vocab_size if is_last else total


def group_refusal(group: TensorGroup | None, spec: ModelSpec) -> str | None:
    """Why a group's ranks cannot share the model equally; None where they can."""
    if group is None:
        return None
    for name, count in (
        ("attention heads", spec.num_heads),
        ("key and value heads", spec.num_kv_heads),
        ("MLP columns", spec.intermediate_size),
    ):
        if count % group.degree:
            return f"{count} {name} of {spec.model_id} cannot be divided among {group.degree} ranks"
    return None


def kv_tokens_room(profile: NodeProfile, spec: ModelSpec, span: LayerSpan) -> int:
    """KV slots that fit beside the weights and buffers of `span`; negative where they do not, or
    where the owner does not allow the model."""
    if group_refusal(profile.group, spec) is not None or spec.model_id in profile.refused_models:
        return -1
    dtype = profile.compute_dtype
    free = profile.memory_bytes - spec.weight_bytes(span, dtype)
    free -= _ranks_buffer_bytes(profile, spec, is_last=span.end == spec.num_layers)
    return free // profile.kv_bytes_per_token(spec, len(span))


def need_bytes(profile: NodeProfile, spec: ModelSpec, span: LayerSpan, kv_tokens: int) -> int:
    """Weights, `kv_tokens` slots and buffers of `span` on this node."""
    dtype = profile.compute_dtype
    total = spec.weight_bytes(span, dtype)
    total += kv_tokens * profile.kv_bytes_per_token(spec, len(span))
    return total + _ranks_buffer_bytes(profile, spec, is_last=span.end == spec.num_layers)


def _ranks_buffer_bytes(profile: NodeProfile, spec: ModelSpec, *, is_last: bool) -> int:
    """Every rank of a group has buffers of its own."""
    degree = 1 if profile.group is None else profile.group.degree
    return degree * buffer_bytes(spec, profile.compute_dtype, is_last=is_last)


def role_bytes(spec: ModelSpec, dtype: DType, *, is_first: bool, is_last: bool) -> int:
    """What a stage holds whatever its layers are: embedding, norm, LM head, buffers."""
    buffers = buffer_bytes(spec, dtype, is_last=is_last)
    if is_first and is_last:
        layers = spec.num_layers * spec.layer_bytes(dtype)
        return spec.weight_bytes(spec.whole, dtype) - layers + buffers
    ends = spec.embedding_bytes(dtype) if is_first or is_last else 0
    if is_last:
        ends += spec.hidden_size * dtype.num_bytes
    return ends + buffers


def profile_role_bytes(
    profile: NodeProfile, spec: ModelSpec, *, is_first: bool, is_last: bool
) -> int:
    """The same on this node."""
    dtype = profile.compute_dtype
    total = role_bytes(spec, dtype, is_first=is_first, is_last=is_last)
    total -= buffer_bytes(spec, dtype, is_last=is_last)
    return total + _ranks_buffer_bytes(profile, spec, is_last=is_last)


def layers_max(
    profile: NodeProfile, spec: ModelSpec, kv_tokens: int, *, is_first: bool, is_last: bool
) -> int:
    """The most layers that fit in that role with `kv_tokens` slots; 0 where none does, or where a
    group cannot share the model or the owner does not allow it."""
    if group_refusal(profile.group, spec) is not None or spec.model_id in profile.refused_models:
        return 0
    dtype = profile.compute_dtype
    held = profile_role_bytes(profile, spec, is_first=is_first, is_last=is_last)
    layer_bytes = spec.layer_bytes(dtype) + kv_tokens * profile.kv_bytes_per_token(spec, 1)
    return max(0, min(spec.num_layers, (profile.memory_bytes - held) // layer_bytes))


# --- links ------------------------------------------------------------------------------------


class Links:
    """Round trips and bandwidths between nodes: measured where known, else through the
    coordinator's round trips (an upper estimate by the triangle inequality)."""

    def __init__(
        self,
        profiles: Iterable[NodeProfile],
        rtt_ms: Iterable[tuple[tuple[NodeId, NodeId], float]] = (),
        bytes_per_s: Iterable[tuple[tuple[NodeId, NodeId], float]] = (),
    ) -> None:
        self._profiles = {p.node_id: p for p in profiles}
        self._rtt_ms: dict[tuple[NodeId, NodeId], float] = {}
        self._bytes_per_s: dict[tuple[NodeId, NodeId], float] = {}
        for (a, b), value in rtt_ms:
            self.set_rtt(a, b, value)
        for (a, b), value in bytes_per_s:
            self.set_bytes_per_s(a, b, value)

    def set_profile(self, profile: NodeProfile) -> None:
        """Take in a node, or its newer profile."""
        self._profiles[profile.node_id] = profile

    def set_rtt(self, a: NodeId, b: NodeId, rtt_ms: float) -> None:
        """Take in a measured round trip; nonsense is dropped."""
        if math.isfinite(rtt_ms) and rtt_ms >= 0.0:
            self._rtt_ms[a, b] = rtt_ms

    def set_bytes_per_s(self, a: NodeId, b: NodeId, bytes_per_s: float) -> None:
        """Take in what was measured from a to b, and only that way; nonsense is dropped."""
        if math.isfinite(bytes_per_s) and bytes_per_s > 0.0:
            self._bytes_per_s[a, b] = max(BYTES_PER_S_MIN, bytes_per_s)

    def forget(self, node_id: NodeId) -> None:
        """Drop a node and what was measured to and from it."""
        self._profiles.pop(node_id, None)
        for known in (self._rtt_ms, self._bytes_per_s):
            for pair in [pair for pair in known if node_id in pair]:
                del known[pair]

    def measured(self) -> dict[tuple[NodeId, NodeId], float]:
        """Round trips by (from, to), a copy."""
        return dict(self._rtt_ms)

    def measured_bytes_per_s(self) -> dict[tuple[NodeId, NodeId], float]:
        """Bandwidths by (from, to), a copy."""
        return dict(self._bytes_per_s)

    def coordinator_rtt_ms(self, node_id: NodeId) -> float:
        """Round trip between a node and the coordinator."""
        own = self._profiles[node_id].coordinator_rtt_ms
        return own if math.isfinite(own) and own >= 0.0 else RTT_MS_MAX

    def rtt_ms(self, a: NodeId, b: NodeId) -> float:
        """Round trip between two nodes; 0 from a node to itself."""
        if a == b:
            return 0.0
        measured = self._rtt_ms.get((a, b), self._rtt_ms.get((b, a)))
        if measured is not None:
            return measured
        return self.predicted_rtt_ms(a, b)

    def predicted_rtt_ms(self, a: NodeId, b: NodeId) -> float:
        """By way of the coordinator, as if nothing had been measured between the two."""
        return self.coordinator_rtt_ms(a) + self.coordinator_rtt_ms(b)

    def up_bytes_per_s(self, node_id: NodeId) -> float:
        """A node's uplink."""
        return sane(self._profiles[node_id].up_bytes_per_s, BYTES_PER_S_MIN)

    def down_bytes_per_s(self, node_id: NodeId) -> float:
        """A node's downlink."""
        return sane(self._profiles[node_id].down_bytes_per_s, BYTES_PER_S_MIN)

    def bytes_per_s(self, a: NodeId, b: NodeId) -> float:
        """From a to b: as measured, else as predicted."""
        measured = self._bytes_per_s.get((a, b)) if self._bytes_per_s else None
        return self.predicted_bytes_per_s(a, b) if measured is None else measured

    def predicted_bytes_per_s(self, a: NodeId, b: NodeId) -> float:
        """The narrower of a's uplink and b's downlink."""
        up, down = self._profiles[a].up_bytes_per_s, self._profiles[b].down_bytes_per_s
        return min(sane(up, BYTES_PER_S_MIN), sane(down, BYTES_PER_S_MIN))

    def hop_ms(self, a: NodeId, b: NodeId, num_bytes: float) -> float:
        """Half a round trip and the transfer."""
        if a == b:
            return 0.0
        return self.rtt_ms(a, b) / 2 + 1e3 * num_bytes / self.bytes_per_s(a, b)

    def back_ms(self, last: NodeId, first: NodeId) -> float:
        """The way of a token from the last stage to the first."""
        return self.rtt_ms(last, first) / 2


# --- chains -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRate:
    """A chain in closed loop: tokens/s of all sequences, ms per token of a single one."""

    tokens_per_s: float
    token_ms_single: float
    num_sequences: int
    bottleneck_ms: float


@dataclass(frozen=True, slots=True)
class StageFigures:
    """A stage's step time as `base_ms + (batch - 1) * extra_ms`, and its KV slots in tokens."""

    base_ms: float
    extra_ms: float
    kv_tokens: int


def chain_rate(
    stages: Sequence[StageFigures], *, hops_ms: float, slot_ms: float, sequence_tokens: int
) -> ChainRate:
    """The largest rate at which the sequences that fit in the KV are under way (Little's law).

    `hops_ms` is one trip round the ring, `slot_ms` the longest transfer of one token's
    activations (the links' ceiling). At rate x a stage's batch b solves b = x * step(b), b >= 1.
    """
    num_sequences = min(s.kv_tokens for s in stages) // max(1, sequence_tokens)
    single_ms = hops_ms + sum(s.base_ms for s in stages)
    bottleneck_ms = max(s.base_ms for s in stages)
    if num_sequences < 1:
        return ChainRate(
            tokens_per_s=0.0,
            token_ms_single=single_ms,
            num_sequences=0,
            bottleneck_ms=bottleneck_ms,
        )
    ceiling = min(BATCH_MAX / (s.base_ms + (BATCH_MAX - 1) * s.extra_ms) for s in stages)
    if slot_ms > 0.0:
        ceiling = min(ceiling, 1.0 / slot_ms)
    low, high = 0.0, ceiling
    for _ in range(24):
        rate = (low + high) / 2
        if rate * _trip_ms(stages, hops_ms, rate) <= num_sequences:
            low = rate
        else:
            high = rate
    return ChainRate(
        tokens_per_s=1e3 * low,
        token_ms_single=single_ms,
        num_sequences=num_sequences,
        bottleneck_ms=bottleneck_ms,
    )


def _trip_ms(stages: Sequence[StageFigures], hops_ms: float, rate: float) -> float:
    total = hops_ms
    for stage in stages:
        if rate * stage.base_ms <= 1.0:
            total += stage.base_ms
            continue
        slack = 1.0 - rate * stage.extra_ms
        batch = rate * (stage.base_ms - stage.extra_ms) / slack if slack > 0.0 else BATCH_MAX
        total += stage.base_ms + (min(float(BATCH_MAX), max(1.0, batch)) - 1.0) * stage.extra_ms
    return total
