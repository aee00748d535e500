"""Machines from nominal figures: what a device's memory and compute could do (Williams et al.,
2009), for nodes of which nothing was measured yet."""

import math
from dataclasses import dataclass

from scheduler.planning.ground import Machine, StageCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much of the nominal figures is reached, and how memory is shared out."""

    compute_share: float = 0.5
    bandwidth_share: float = 0.7
    overhead_s: float = 1.0e-3
    weights_share: float = 0.65
    kv_share: float = 0.25
    context_tokens: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """A model in bytes and FLOPs; KV per token and layer."""

    num_layers: int
    hidden: int
    vocab: int
    layer_bytes: float
    kv_bytes: float
    layer_flops: float
    embedding_bytes: float

    @property
    def activation_bytes(self) -> float:
        """Of one token on a hop, two bytes a number."""
        return 2.0 * self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A node in nominal figures. `region` is an index."""

    node_id: str
    kind: str
    region: int
    last_mile_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    memory_bytes: float
    flops_per_s: float
    memory_bytes_per_s: float


def machine_of(device: Device, model: ModelFigures, rules: Rules) -> Machine:
    """The device as the planner sees it, for this model."""
    flops = rules.compute_share * device.flops_per_s
    bandwidth = rules.bandwidth_share * device.memory_bytes_per_s
    kv_sequence = model.kv_bytes * rules.context_tokens
    return Machine(
        node_id=device.node_id,
        kind=device.kind,
        region=device.region,
        last_mile_s=device.last_mile_s,
        up_bytes_per_s=device.up_bytes_per_s,
        down_bytes_per_s=device.down_bytes_per_s,
        room_bytes=math.floor(device.memory_bytes * rules.weights_share),
        kv_bytes=rules.kv_share * device.memory_bytes,
        layer_bytes=round(model.layer_bytes),
        kv_sequence_bytes=kv_sequence,
        first_bytes=model.embedding_bytes,
        last_bytes=model.embedding_bytes,
        both_bytes=2 * model.embedding_bytes,
        curve=StageCurve(
            overhead_s=rules.overhead_s,
            compute_s=model.layer_flops / flops,
            read_s=model.layer_bytes / bandwidth,
            kv_s=kv_sequence / bandwidth,
            head_compute_s=2 * model.hidden * model.vocab / flops,
            head_read_s=model.embedding_bytes / bandwidth,
        ),
    )
