"""Measured nodes on the planner's terms: the one shape of a stage's cost, from `scheduler.cost`."""

from typing import Final

from scheduler.cost import StageCost
from scheduler.planning.ground import StageCurve

LEAST_S: Final = 1e-9


def curve_of(cost: StageCost) -> StageCurve:
    """Measured times (or their roofline, where nothing was measured) as a curve over the batch."""
    extra_s = cost.layer_ms_per_extra / 1e3
    return StageCurve(
        overhead_s=max(LEAST_S, cost.overhead_ms / 1e3),
        compute_s=0.0,
        read_s=max(LEAST_S, cost.layer_ms / 1e3 - extra_s),
        kv_s=extra_s,
        head_compute_s=0.0,
        head_read_s=cost.head_ms / 1e3,
    )
