"""What a stage's step takes, as a curve over its batch; from nominal figures by a roofline
(Williams et al., 2009). The one place where bytes and FLOPs become seconds.

A step over k layers and b sequences takes `overhead + k * (max(compute * b, read + kv * b) + sync +
sync_row * b)`, and the head on the last stage `max(head_compute * b, head_read)`.
"""

from dataclasses import dataclass
from typing import Final

from plait.types import TensorGroup

COMPUTE_SHARE: Final = 0.5
MEMORY_SHARE: Final = 0.7
"""How much of its nominal figures a device reaches."""
OVERHEAD_S: Final = 1.0e-3
LOGIT_BYTES: Final = 4
FLOPS_PER_S_MIN: Final = 1e8
BYTES_PER_S_MIN: Final = 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCurve:
    """Times of one model on one machine, in seconds; see the module's docstring. The `sync`s are
    what the ranks of a tensor-parallel group wait for each other at every layer."""

    overhead_s: float
    compute_s: float
    read_s: float
    kv_s: float
    head_compute_s: float
    head_read_s: float
    sync_s: float = 0.0
    sync_row_s: float = 0.0

    def layer_s(self, batch: float) -> float:
        """One layer of a step of `batch` sequences."""
        own = max(self.compute_s * batch, self.read_s + self.kv_s * batch)
        return own + self.sync_rows_s(batch)

    def sync_rows_s(self, rows: float) -> float:
        """What a layer's all-reduces of so many rows take."""
        return self.sync_s + self.sync_row_s * rows

    def step_s(self, num_layers: int, batch: float, *, is_last: bool) -> float:
        """One step of `batch` sequences over `num_layers`."""
        total = self.overhead_s + num_layers * self.layer_s(batch)
        if is_last:
            total += max(self.head_compute_s * batch, self.head_read_s)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """A device's nominal rates; of a group, those of all its ranks together at equal shares.
    `compute_share` and `memory_share` of them are reached."""

    flops_per_s: float
    bytes_per_s: float
    compute_share: float = COMPUTE_SHARE
    memory_share: float = MEMORY_SHARE
    overhead_s: float = OVERHEAD_S
    group: TensorGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A model in bytes and FLOPs: of a layer per token, of its weights, of the KV of a sequence;
    the same of the head; a row of activations inside the device, and a row of logits."""

    layer_flops: float
    layer_bytes: float
    kv_bytes: float
    head_flops: float
    head_bytes: float
    row_bytes: float
    logits_bytes: float


def roofline(speeds: Speeds, work: Work, *, batch_max: int) -> StageCurve:
    """The slower of compute and memory traffic, and two all-reduces a layer in a group: of a
    group's times the chord from one row to `batch_max`."""
    flops = speeds.compute_share * speeds.flops_per_s
    bandwidth = speeds.memory_share * speeds.bytes_per_s
    one = 2 * all_reduce_s(speeds.group, work.row_bytes)
    many = 2 * all_reduce_s(speeds.group, batch_max * work.row_bytes)
    slope = (many - one) / max(1, batch_max - 1)
    gather_s = gather_row_s(speeds.group, work.logits_bytes)
    return StageCurve(
        overhead_s=speeds.overhead_s,
        compute_s=work.layer_flops / flops,
        read_s=work.layer_bytes / bandwidth,
        kv_s=work.kv_bytes / bandwidth,
        head_compute_s=work.head_flops / flops + gather_s,
        head_read_s=work.head_bytes / bandwidth + gather_s,
        sync_s=one - slope,
        sync_row_s=slope,
    )


def all_reduce_s(group: TensorGroup | None, num_bytes: float) -> float:
    """Sum `num_bytes` over all ranks, on all ranks: by a star (two latencies, everything through
    one link) or by a ring (Patarasuk and Yuan, 2009), whichever is quicker at that size."""
    if group is None or group.degree < 2:
        return 0.0
    others, wire_s = group.degree - 1, num_bytes / max(BYTES_PER_S_MIN, group.link_bytes_per_s)
    star = 2 * (group.link_latency_s + others * wire_s)
    ring = 2 * others * (group.link_latency_s + wire_s / group.degree)
    return min(star, ring)


def gather_row_s(group: TensorGroup | None, logits_bytes: float) -> float:
    """A row of logits, of which each rank has its share of the vocabulary, on one rank."""
    if group is None or group.degree < 2:
        return 0.0
    share = (group.degree - 1) / group.degree
    wire_s = logits_bytes / max(BYTES_PER_S_MIN, group.link_bytes_per_s)
    return group.link_latency_s + share * wire_s
