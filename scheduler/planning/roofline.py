"""Machines from nominal figures: what a device's memory and compute could do, for nodes of which
nothing was measured yet."""

import math
from dataclasses import dataclass

from plait.types import TensorGroup
from scheduler.curve import (
    COMPUTE_SHARE,
    LOGIT_BYTES,
    MEMORY_SHARE,
    OVERHEAD_S,
    Speeds,
    Work,
    roofline,
)
from scheduler.planning.ground import BATCH_MAX, Machine
from scheduler.survival import loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much of the nominal figures is reached, and how memory is shared out."""

    compute_share: float = COMPUTE_SHARE
    bandwidth_share: float = MEMORY_SHARE
    overhead_s: float = OVERHEAD_S
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
    """A node in nominal figures, or a tensor-parallel `group` of ranks, whose figures are the
    weakest's times the degree. `region` is an index."""

    node_id: str
    kind: str
    region: int
    last_mile_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    memory_bytes: float
    flops_per_s: float
    memory_bytes_per_s: float
    group: TensorGroup | None = None
    mean_session_s: float | None = None


def machine_of(device: Device, model: ModelFigures, rules: Rules) -> Machine:
    """The device as the planner sees it, for this model."""
    kv_sequence = model.kv_bytes * rules.context_tokens
    speeds = Speeds(
        flops_per_s=device.flops_per_s,
        bytes_per_s=device.memory_bytes_per_s,
        compute_share=rules.compute_share,
        memory_share=rules.bandwidth_share,
        overhead_s=rules.overhead_s,
        group=device.group,
    )
    work = Work(
        layer_flops=model.layer_flops,
        layer_bytes=model.layer_bytes,
        kv_bytes=kv_sequence,
        head_flops=2 * model.hidden * model.vocab,
        head_bytes=model.embedding_bytes,
        row_bytes=model.activation_bytes,
        logits_bytes=LOGIT_BYTES * model.vocab,
    )
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
        curve=roofline(speeds, work, batch_max=BATCH_MAX),
        loss=loss(device.mean_session_s),
    )
