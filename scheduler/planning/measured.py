"""Measured nodes on the planner's terms: the one shape of a stage's cost, from `scheduler.cost`."""

from typing import Final

from plait.types import ModelSpec, NodeProfile
from scheduler.cost import StageCost, profile_role_bytes, sane
from scheduler.curve import StageCurve
from scheduler.planning.ground import Machine

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


def measured_machine(
    profile: NodeProfile,
    spec: ModelSpec,
    cost: StageCost,
    *,
    kind: str,
    region: int,
    sequence_tokens: int,
    loss: float = 0.0,
) -> Machine:
    """A node with `cost` of this model, memory as the node reckons it; KV shares the room of
    weights. Its way to others is in the regions' round trips."""
    dtype = profile.compute_dtype

    def held(*, is_first: bool, is_last: bool) -> int:
        return profile_role_bytes(profile, spec, is_first=is_first, is_last=is_last)

    plain = held(is_first=False, is_last=False)
    return Machine(
        node_id=profile.node_id,
        kind=kind,
        region=region,
        last_mile_s=0.0,
        up_bytes_per_s=sane(profile.up_bytes_per_s, 1.0),
        down_bytes_per_s=sane(profile.down_bytes_per_s, 1.0),
        room_bytes=float(max(0, profile.memory_bytes - plain)),
        kv_bytes=None,
        layer_bytes=float(spec.layer_bytes(dtype)),
        kv_sequence_bytes=float(profile.kv_bytes_per_token(spec, 1) * sequence_tokens),
        first_bytes=float(held(is_first=True, is_last=False) - plain),
        last_bytes=float(held(is_first=False, is_last=True) - plain),
        both_bytes=float(held(is_first=True, is_last=True) - plain),
        curve=curve_of(cost),
        loss=loss,
    )
