"""What a plan is asked about: nodes as they have shown themselves, what they hold and have, and
what models are asked for."""

from collections.abc import Mapping
from dataclasses import replace

from coordinator.core.calibrating import priced_for_plan
from coordinator.core.machines import NodeState
from coordinator.core.state import CoreState, NodeRecord
from plait.types import ModelId, ModelSpec, NodeId, NodeProfile
from scheduler.allocation.problem import AllocationProblem, Cached, Placement


def is_placed(node: NodeRecord) -> bool:
    """Whether it holds layers, or loads them."""
    return node.state in (NodeState.LOADING, NodeState.SERVING) and node.profile is not None


def problem_of(
    state: CoreState,
    members: list[NodeRecord],
    fixed: list[NodeRecord],
    *,
    is_repair: bool,
    is_asked: bool = True,
) -> AllocationProblem:
    """The question of how `members` are to be used; those of `fixed` keep what they hold. One that
    is not asked (`is_asked` False: for a look ahead) leaves no trace."""
    demand = state.demand.plan() if is_asked else state.demand.shares()
    known = {n.node_id for n in members}
    stay = {n.node_id for n in fixed}
    held = tuple(
        Placement(node_id=n.node_id, model_id=n.model_id, span=n.span, reason=n.span_reason)
        for n in members
        if n.model_id is not None and n.span is not None and is_placed(n)
    )
    return AllocationProblem(
        models=tuple(state.models.values()),
        nodes=tuple(
            p
            for n in members
            if (p := planning_profile(n, state.models, may_move=n.node_id not in stay)) is not None
        ),
        kv_tokens_min=state.limits.kv_tokens_min,
        wire_dtype=state.wire_dtype,
        rtt_ms=_among(state.links.measured(), known),
        bytes_per_s=_among(state.links.measured_bytes_per_s(), known),
        held=held,
        time_limit_s=state.limits.solve_time_limit_s,
        fixed=tuple(n.node_id for n in fixed),
        mean_session_s=_mean_sessions(state, members),
        demand=tuple(demand.items()) if len(state.models) > 1 else (),
        replicas_min=tuple(state.demand.replicas_min.items()),
        is_repair=is_repair,
        cached=_cached(state, members),
    )


def _cached(state: CoreState, members: list[NodeRecord]) -> tuple[Cached, ...]:
    """What nodes have on their disks of the very weights that the network serves."""
    return tuple(
        Cached(node_id=n.node_id, model_id=c.model_id, span=c.span)
        for n in members
        for c in n.cached
        if (spec := state.models.get(c.model_id)) is not None
        and c.span.end <= spec.num_layers
        and c.digest == state.digests.get(c.model_id, c.digest)
    )


def _mean_sessions(state: CoreState, members: list[NodeRecord]) -> tuple[tuple[NodeId, float], ...]:
    """How long nodes stay; nothing until one of the network's has left."""
    if not len(state.lifetimes):
        return ()
    return tuple(
        (n.node_id, state.lifetimes.mean_session_s(n.node_id, state.now_ms - n.attached_ms))
        for n in members
    )


def _among(
    measured: Mapping[tuple[NodeId, NodeId], float], known: set[NodeId]
) -> tuple[tuple[tuple[NodeId, NodeId], float], ...]:
    return tuple(
        (pair, value)
        for pair, value in sorted(measured.items())
        if pair[0] in known and pair[1] in known
    )


def planning_profile(
    node: NodeRecord, models: Mapping[ModelId, ModelSpec], *, may_move: bool = True
) -> NodeProfile | None:
    """The node's profile with the speed and the memory that it has shown to have."""
    if node.profile is None:
        return None
    profile = priced_for_plan(node, node.profile, models.values(), may_move=may_move)
    if node.memory_share >= 1.0:
        return profile
    return replace(profile, memory_bytes=int(profile.memory_bytes * node.memory_share))
