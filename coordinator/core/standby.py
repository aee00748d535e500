"""Why a node that is here holds nothing, and what would let it serve. Changes nothing."""

from dataclasses import replace
from itertools import pairwise

from coordinator.core.machines import NodeState
from coordinator.core.state import CoreState, NodeRecord
from plait.types import ModelId
from scheduler.allocation.shortage import gib
from scheduler.cost import layers_max


def standby_reason(state: CoreState, node: NodeRecord) -> str | None:
    """A sentence where the last plan knew the node and gave it nothing; None elsewhere: it still
    measures, a plan is on its way, it has something to load or to leave, its owner paused it."""
    planning, profile = state.planning, node.profile
    if node.state is not NodeState.JOINING or node.paused or profile is None:
        return None
    if planning.attachments.get(node.node_id) != node.attachment or _is_tried_again(state, node):
        return None
    if planning.problem is not None or (planning.in_force is None and planning.error is None):
        return None
    if node.last_error:
        return "could not load its layers; other nodes have them now"
    allowed = [m for m in state.models if m not in profile.refused_models]
    if not allowed:
        return "its owner allows none of the network's models"
    shrunk = replace(profile, memory_bytes=int(profile.memory_bytes * node.memory_share))
    rooms = {
        m: layers_max(
            shrunk,
            state.models[m],
            min(state.limits.kv_tokens_min, state.models[m].context_tokens_max),
            is_first=False,
            is_last=False,
        )
        for m in allowed
    }
    if not any(rooms.values()):
        return (
            f"no layer of {' or '.join(rooms)} fits in the {gib(shrunk.memory_bytes)} that it "
            "offers; more memory would let it serve"
        )
    if planning.in_force is None:
        return "no model fits on the nodes that are here; more nodes would let it serve"
    return _beside_the_plan(state, rooms)


def _is_tried_again(state: CoreState, node: NodeRecord) -> bool:
    return node.plan_after_ms > state.now_ms


def _beside_the_plan(state: CoreState, rooms: dict[ModelId, int]) -> str:
    """There is a plan, and at least a layer fits on the node."""
    plan = state.planning.in_force
    assert plan is not None
    least: dict[ModelId, int] = {}
    for model_id in rooms:
        spans = [p.span for p in plan.placements if p.model_id == model_id]
        cuts = sorted({cut for span in spans for cut in (span.start, span.end)})
        if cuts:
            least[model_id] = min(b - a for a, b in pairwise(cuts))
    if least and all(rooms[m] < count for m, count in least.items()):
        model_id = min(least, key=lambda m: least[m] - rooms[m])
        return (
            f"no span of the plan fits: {rooms[model_id]} of {model_id}'s layers have room, the "
            f"smallest part of the plan has {least[model_id]}; more memory would let it serve"
        )
    return "other nodes serve every layer; it stands in when one leaves or the plan changes"
