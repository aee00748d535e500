"""What nodes report against what was predicted: prices for routes at once, for plans in time."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from coordinator.core.state import CoreState, NodeRecord
from plait.types import ModelSpec, NodeLoad, NodeProfile
from scheduler.calibration import Calibration, calibrated, repriced
from scheduler.cost import StageCost, stage_cost

HELD_UP_WEIGHT: Final = 0.5
HELD_UP_MS_MIN: Final = 10.0
"""What is less is nothing: timers are late on every machine."""


def observe(state: CoreState, node: NodeRecord, load: NodeLoad) -> bool:
    """A heartbeat came: learn from the steps since the last one. Returns whether the node has been
    far from what plans believe of it for so long that another plan is called for."""
    before = node.load.steps if node.load is not None else None
    spec = state.models.get(node.model_id) if node.model_id is not None else None
    if spec is None or node.held is None or node.profile is None or before is None:
        return False
    now, span = load.steps, node.held.span
    subject = (spec.model_id, span, node.profile)
    if node.calibrated_for != subject:
        is_same_device = node.calibrated_for is not None and node.calibrated_for[2] == node.profile
        after = Calibration.after(node.calibration) if is_same_device else Calibration()
        node.calibrated_for, node.calibration, node.priced = subject, after, None
        return False
    if now == before:
        node.calibration.rest(state.now_ms)
        _tell_routes(state, node)
        return False
    cost = stage_cost(node.profile, spec)
    if not node.calibration.observe(cost, span, spec, before=before, now=now):
        return False
    node.calibration.work()
    _tell_routes(state, node)
    if node.calibration.decode.is_known:
        node.priced = calibrated(cost, node.calibration.factors)
    patience_ms = state.limits.reprice_ms
    return node.calibration.is_departed(state.now_ms, patience_ms=patience_ms)


def _tell_routes(state: CoreState, node: NodeRecord) -> None:
    """Routers price a node that is idle by what they were made with."""
    if node.calibration.tell_routes():
        state.links_version += 1


def observe_held_up(state: CoreState, node: NodeRecord, held_up_ms: float) -> None:
    """What comes to the node waits so long until its process runs, which its steps do not tell:
    routes are priced with it as soon as it changes notably."""
    node.held_up_mean_ms += HELD_UP_WEIGHT * (held_up_ms - node.held_up_mean_ms)
    now_ms = node.held_up_mean_ms if node.held_up_mean_ms >= HELD_UP_MS_MIN else 0.0
    if abs(now_ms - node.held_up_ms) > node.held_up_ms / 3:
        node.held_up_ms = now_ms
        state.links_version += 1


def node_cost(node: NodeRecord, spec: ModelSpec) -> StageCost:
    """What a profiled node's steps on `spec` take: measured or nominal, as corrected by what was
    observed since, and not too long ago, with what they wait for the process to run."""
    assert node.profile is not None
    cost = stage_cost(node.profile, spec)
    if _is_for(node, spec):
        cost = calibrated(cost, node.calibration.route_factors)
    if node.held_up_ms > 0.0:
        cost = replace(cost, overhead_ms=cost.overhead_ms + node.held_up_ms)
    return cost


def live_stage_ms(node: NodeRecord) -> float:
    """What a step of the requests on the node takes now: as corrected by what was observed, or
    its own mean where too little was; 0 where it says nothing. What they wait comes on top."""
    if node.priced is not None and node.span is not None:
        step_ms = node.priced.decode_ms(len(node.span), max(1, len(node.pipelines)))
    else:
        step_ms = node.load.stage_ms if node.load is not None else 0.0
    return step_ms + node.held_up_ms if step_ms > 0.0 else 0.0


def priced_for_plan(
    node: NodeRecord, profile: NodeProfile, models: Iterable[ModelSpec], *, may_move: bool
) -> NodeProfile:
    """`profile` with what was observed, for all models: a device that is slow on one is slow on
    others. Later departures count from here, where the plan may move the node."""
    calibration = node.calibration
    calibration.reprice(may_move=may_move)
    if calibration.planned == (1.0, 1.0):
        return profile
    for spec in models:
        cost = calibrated(stage_cost(profile, spec), calibration.planned)
        profile = repriced(profile, spec, cost)
    return profile


def _is_for(node: NodeRecord, spec: ModelSpec) -> bool:
    return node.calibrated_for is not None and node.calibrated_for[0] == spec.model_id
