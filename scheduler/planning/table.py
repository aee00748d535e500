"""Machines as columns of numbers, for pricing many chains at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.planning.ground import Ground, Machine

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One entry per machine, (machines,), and one more at the end that stands for "no stage"."""

    num_layers: int
    activation_bytes: float
    batch_max: float
    rtt_s: Floats  # (regions, regions)
    region: Ints
    last_mile_s: Floats
    up: Floats
    down: Floats
    room: Floats
    kv: Floats  # NaN where KV shares the room of weights
    layer: Floats
    kv_sequence: Floats
    first: Floats
    last: Floats
    both: Floats
    overhead: Floats
    compute: Floats
    read: Floats
    per_sequence: Floats
    head_compute: Floats
    head_read: Floats
    sync: Floats
    """What ranks of a group wait for each other at a layer, whatever the batch; `read` has it too.
    What grows with the batch is in `compute` and `per_sequence`."""
    loss: Floats

    @property
    def none(self) -> int:
        """The index that stands for "no stage"."""
        return len(self.region) - 1


def make_table(ground: Ground, machines: tuple[Machine, ...] | None = None) -> Table:
    """`machines` instead of the ground's own where given: the averages of classes, say."""
    rows = ground.machines if machines is None else machines

    def column(values: list[float], absent: float) -> Floats:
        return np.array([*values, absent], dtype=np.float64)

    return Table(
        num_layers=ground.num_layers,
        activation_bytes=ground.activation_bytes,
        batch_max=float(ground.batch_max),
        rtt_s=np.array(ground.region_rtt_s, dtype=np.float64),
        region=np.array([*(m.region for m in rows), 0], dtype=np.int64),
        last_mile_s=column([m.last_mile_s for m in rows], 0.0),
        up=column([m.up_bytes_per_s for m in rows], np.inf),
        down=column([m.down_bytes_per_s for m in rows], np.inf),
        room=column([m.room_bytes for m in rows], 0.0),
        kv=column([np.nan if m.kv_bytes is None else m.kv_bytes for m in rows], 0.0),
        layer=column([m.layer_bytes for m in rows], 1.0),
        kv_sequence=column([m.kv_sequence_bytes for m in rows], 1.0),
        first=column([m.first_bytes for m in rows], 0.0),
        last=column([m.last_bytes for m in rows], 0.0),
        both=column([m.both_bytes for m in rows], 0.0),
        overhead=column([m.curve.overhead_s for m in rows], 0.0),
        compute=column([m.curve.compute_s + m.curve.sync_row_s for m in rows], 0.0),
        read=column([m.curve.read_s + m.curve.sync_s for m in rows], 0.0),
        per_sequence=column([m.curve.kv_s + m.curve.sync_row_s for m in rows], 0.0),
        head_compute=column([m.curve.head_compute_s for m in rows], 0.0),
        head_read=column([m.curve.head_read_s for m in rows], 0.0),
        sync=column([m.curve.sync_s for m in rows], 0.0),
        loss=column([m.loss for m in rows], 0.0),
    )
