"""What a plan is made from: machines, the ground between them, one model. Seconds and bytes.

One shape for what was measured and for what is nominal, `scheduler.curve.StageCurve`: a roofline
fills all of it; a measured node has `compute = 0`, `read = layer - extra`, `kv = extra`.
"""

import itertools
from dataclasses import dataclass
from typing import Final

from scheduler.curve import StageCurve as StageCurve
from scheduler.survival import up_share

BATCH_MAX: Final = 64
"""Sequences that a stage runs in one step at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node. `room_bytes` takes weights; KV has `kv_bytes` of its own, or (None) what weights
    leave. `first_bytes`, `last_bytes` and `both_bytes` are held by ends whatever their layers.
    `loss` is what its coming and going costs a replica (`scheduler.survival`)."""

    node_id: str
    kind: str
    region: int
    last_mile_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    room_bytes: float
    kv_bytes: float | None
    layer_bytes: float
    kv_sequence_bytes: float
    first_bytes: float
    last_bytes: float
    both_bytes: float
    curve: StageCurve
    loss: float = 0.0

    def layers_max(self, *, is_first: bool, is_last: bool, num_sequences: int = 1) -> int:
        """Layers that fit in that role beside the KV of `num_sequences`, 0 where none does."""
        free = self.room_bytes
        if is_first and is_last:
            free -= self.both_bytes
        elif is_first or is_last:
            free -= self.first_bytes if is_first else self.last_bytes
        if free <= 0.0:
            return 0
        kv = num_sequences * self.kv_sequence_bytes
        if self.kv_bytes is None or kv <= 0.0:
            return int(free // (self.layer_bytes + kv))
        return int(min(free // self.layer_bytes, self.kv_bytes // kv))

    def sequences_max(self, num_layers: int, *, is_first: bool, is_last: bool) -> int:
        """Sequences whose KV fits beside `num_layers`; 0 where the layers do not fit."""
        if num_layers > self.layers_max(is_first=is_first, is_last=is_last, num_sequences=0):
            return 0
        kv = num_layers * self.kv_sequence_bytes
        if self.kv_bytes is not None:
            return int(self.kv_bytes // kv)
        ends = self.both_bytes if is_first and is_last else 0.0
        if is_first != is_last:
            ends = self.first_bytes if is_first else self.last_bytes
        return int((self.room_bytes - ends - num_layers * self.layer_bytes) // kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Machines and what lies between them: `region_rtt_s[r][q]` and both last miles make a round
    trip. `activation_bytes` cross each hop per token and sequence."""

    num_layers: int
    activation_bytes: float
    regions: tuple[str, ...]
    region_rtt_s: tuple[tuple[float, ...], ...]
    machines: tuple[Machine, ...]
    batch_max: int = BATCH_MAX

    def rtt_s(self, a: Machine, b: Machine) -> float:
        """Round trip between two machines."""
        if a.node_id == b.node_id:
            return 0.0
        return self.region_rtt_s[a.region][b.region] + a.last_mile_s + b.last_mile_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the operator asks of a plan."""

    stages_max: int | None = None
    tpot_s_max: float | None = None
    time_limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One chain over the whole model: (index of the machine, layers) in order."""

    stages: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFigures:
    """Closed-loop figures: tokens/s over all the time, seconds per token alone and under load,
    sequences at once."""

    rate_per_s: float
    tpot_s_single: float
    tpot_s_loaded: float
    num_sequences: int


def replica_figures(
    ground: Ground, replica: Replica, *, tpot_s_max: float | None = None
) -> ReplicaFigures:
    """The largest rate at which as many sequences as the scarcest stage's KV holds are under way
    (Little's law), and no token takes longer than `tpot_s_max`.

    Slow and plain: plans are priced by `price.py`, and checked with this.
    """
    stages = [(ground.machines[i], k) for i, k in replica.stages]
    last = len(stages) - 1
    slots = min(
        m.sequences_max(k, is_first=i == 0, is_last=i == last) for i, (m, k) in enumerate(stages)
    )
    hops = sum(
        ground.rtt_s(m, stages[(i + 1) % (last + 1)][0]) / 2 for i, (m, _) in enumerate(stages)
    )
    links = [
        min(a.up_bytes_per_s, b.down_bytes_per_s) for (a, _), (b, _) in itertools.pairwise(stages)
    ]
    most = float(ground.batch_max)
    ceiling = min(
        [most / m.curve.step_s(k, most, is_last=i == last) for i, (m, k) in enumerate(stages)]
        + [bandwidth / ground.activation_bytes for bandwidth in links]
    )

    def trip_s(rate: float) -> float:
        total = hops
        for i, (machine, count) in enumerate(stages):
            batch = _batch(machine.curve, count, rate, most, is_last=i == last)
            total += machine.curve.step_s(count, batch, is_last=i == last)
            total += batch * ground.activation_bytes / links[i] if i < last else 0.0
        return total

    low, high = 0.0, ceiling if slots > 0 else 0.0
    longest = float("inf") if tpot_s_max is None else tpot_s_max
    for _ in range(44):
        rate = (low + high) / 2
        trip = trip_s(rate)
        low, high = (rate, high) if rate * trip <= slots and trip <= longest else (low, rate)
    return ReplicaFigures(
        rate_per_s=low * up_share(sum(m.loss for m, _ in stages)),
        tpot_s_single=trip_s(0.0),
        tpot_s_loaded=trip_s(low),
        num_sequences=slots,
    )


def _batch(curve: StageCurve, count: int, rate: float, most: float, *, is_last: bool) -> float:
    """The batch at which a stage keeps up with `rate`."""
    low, high = 1.0, most
    if rate * curve.step_s(count, low, is_last=is_last) <= low:
        return low
    for _ in range(44):
        batch = (low + high) / 2
        is_enough = rate * curve.step_s(count, batch, is_last=is_last) <= batch
        low, high = (low, batch) if is_enough else (batch, high)
    return high
