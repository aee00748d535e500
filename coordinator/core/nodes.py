"""Events of nodes: attach, measure, report, load, detach."""

from typing import Final

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.calibrating import observe, observe_held_up
from coordinator.core.leaving_slow import leave_if_slow
from coordinator.core.machines import NodeState, NodeTrigger
from coordinator.core.neighbours import probe
from coordinator.core.planning import ask_plan, fail_load, send_assignment
from coordinator.core.settle import break_pipeline, lose_node
from coordinator.core.slowdown import departed
from coordinator.core.state import CoreState, NodeRecord
from coordinator.core.timers import NodeKey, TimerKind
from plait.types import CachedSpan, HeldSpan, NodeId, Reason, merged

ALREADY_CONNECTED: Final = Reason(
    code="already_connected", message="a newer process of this node has attached"
)


def attached(state: CoreState, event: ev.NodeAttached) -> None:
    """A control stream is up. The newest incarnation wins; what a node holds already, it serves."""
    old = state.nodes.get(event.node_id)
    if old is not None and old.incarnation > event.incarnation:
        state.ignore()
        _evict(state, event.node_id, event.incarnation, ALREADY_CONNECTED, may_rejoin=False)
        return
    if old is not None and old.incarnation == event.incarnation:
        _attached_again(state, old, event)
        return
    if old is not None:
        old.may_rejoin = False
        lose_node(state, old, ALREADY_CONNECTED)
    state.num_attachments += 1
    node = NodeRecord(
        node_id=event.node_id,
        incarnation=event.incarnation,
        attachment=state.num_attachments,
        display_name=event.display_name,
        addresses=event.addresses,
        attached_ms=state.now_ms,
        heard_ms=state.now_ms,
        reuses_prefixes=event.reuses_prefixes,
        cached=merged(event.cached),
        paused=event.paused,
    )
    state.nodes[event.node_id] = node
    state.losses.pop(event.node_id, None)
    state.timers.at(state.now_ms + state.limits.lease_ms, TimerKind.LEASE, node.key)
    if event.held is not None and held_error(state, event.held) is None:
        _take_held(state, node, event.held, NodeTrigger.RESUMED)


def _attached_again(state: CoreState, node: NodeRecord, event: ev.NodeAttached) -> None:
    """The same process on a new stream, before we noticed that the old one was gone."""
    node.heard_ms = state.now_ms
    node.addresses, node.display_name = event.addresses, event.display_name
    if node.state is not NodeState.LOADING:
        return
    held = event.held
    if held is not None and _is_assigned(node, held) and held_error(state, held) is None:
        _take_held(state, node, held, NodeTrigger.LOADED)
    else:
        send_assignment(state, node)


def held_error(state: CoreState, held: HeldSpan) -> Reason | None:
    """Why a held span cannot be served here, or None."""
    spec = state.models.get(held.model_id)
    if spec is None:
        return Reason(code="model_not_found", message=f"{held.model_id} is not served here")
    if held.span.end > spec.num_layers:
        return Reason(code="invalid_span", message=f"{held.model_id} has no layers {held.span}")
    if held.kv_tokens_max < 1:
        return Reason(code="not_enough_memory", message="no KV fits beside the weights")
    if held.weight_format is not spec.weight_format:
        return Reason(
            code="format_mismatch",
            message=f"it holds {held.model_id} as {held.weight_format}, the network serves it as "
            f"{spec.weight_format}",
        )
    expected = state.digests.get(held.model_id)
    if expected is not None and held.digest != expected:
        return Reason(
            code="digest_mismatch",
            message=f"its weights of {held.model_id} differ from the network's "
            f"({held.digest[:12]} instead of {expected[:12]})",
        )
    return None


def _take_held(state: CoreState, node: NodeRecord, held: HeldSpan, trigger: NodeTrigger) -> None:
    state.move_node(node, trigger)
    state.digests.setdefault(held.model_id, held.digest)
    node.held = held
    own = CachedSpan(model_id=held.model_id, span=held.span, digest=held.digest)
    node.cached = merged((*node.cached, own))
    node.model_id, node.span, node.epoch = held.model_id, held.span, held.allocation_epoch
    node.num_failures, node.last_error = 0, ""
    if trigger is NodeTrigger.RESUMED:
        node.span_reason = "held it already when it attached"
    # Plans that are made from now on must be newer than what nodes hold.
    state.planning.epoch = max(state.planning.epoch, held.allocation_epoch)
    state.must_dispatch = True


def profiled(state: CoreState, event: ev.NodeProfiled) -> None:
    """The node can be planned with, and routed over if it serves already."""
    node = heard(state, event.profile.node_id, event.incarnation)
    if node is None:
        return
    is_first = node.profile is None
    if state.planning.first_profiled_ms is None:
        state.planning.first_profiled_ms = state.now_ms
    node.profile = event.profile
    if event.profile.addresses:
        node.addresses = event.profile.addresses
    state.links.set_profile(event.profile)
    state.topology += 1
    state.must_dispatch = True
    if is_first:
        probe(state, node)
    if node.state is NodeState.JOINING or is_first:
        ask_plan(state)


def reported(state: CoreState, event: ev.NodeReported) -> None:
    """A heartbeat."""
    node = state.nodes.get(event.node_id)
    was_silent = node is not None and state.now_ms - node.heard_ms >= state.limits.suspect_ms
    node = heard(state, event.node_id, event.incarnation)
    if node is not None:
        if observe(state, node, event.load):
            departed(state, node)
        node.load = event.load
        observe_held_up(state, node, event.load.held_up_ms)
        leave_if_slow(state, node)
        state.touched[node.node_id] = None
        state.must_dispatch = state.must_dispatch or was_silent


def heard(state: CoreState, node_id: NodeId, incarnation: int) -> NodeRecord | None:
    """The node, its lease renewed; None (counted) for another incarnation."""
    node = state.node(node_id, incarnation)
    if node is not None:
        node.heard_ms = state.now_ms
    return node


def lease_due(state: CoreState, key: NodeKey) -> None:
    """Lose the node if it was silent for its whole lease; else look again when that could be."""
    node = state.node_at(key)
    if node is None:
        return
    limits = state.limits
    is_busy = node.state in (NodeState.JOINING, NodeState.LOADING)
    due_ms = node.heard_ms + (limits.lease_busy_ms if is_busy else limits.lease_ms)
    if due_ms > state.now_ms:
        # A busy node may begin to serve meanwhile: look again no later than its short lease.
        state.timers.at(min(due_ms, state.now_ms + limits.lease_ms), TimerKind.LEASE, key)
        return
    silent_ms = state.now_ms - node.heard_ms
    lose_node(
        state,
        node,
        Reason(code="lease_expired", message=f"no heartbeat of {node.node_id} for {silent_ms} ms"),
    )


def _loading(state: CoreState, node_id: NodeId, incarnation: int, epoch: int) -> NodeRecord | None:
    """The node, if it loads what the allocation of `epoch` gave it; else counted."""
    node = heard(state, node_id, incarnation)
    if node is None:
        return None
    if node.state is not NodeState.LOADING or node.epoch != epoch:
        state.ignore()
        return None
    return node


def load_progressed(state: CoreState, event: ev.NodeLoadProgressed) -> None:
    """Bytes read so far."""
    node = _loading(state, event.node_id, event.incarnation, event.epoch)
    if node is None:
        return
    if (event.phase, event.done_bytes) != (node.load_phase, node.load_done_bytes):
        node.load_heard_ms = state.now_ms
    node.load_phase = event.phase
    node.load_done_bytes, node.load_total_bytes = event.done_bytes, event.total_bytes


def loaded(state: CoreState, event: ev.NodeLoaded) -> None:
    """The span is in memory: the node serves, if it is the span that was asked for."""
    held = event.held
    node = _loading(state, event.node_id, event.incarnation, held.allocation_epoch)
    if node is None:
        return
    if (node.model_id, node.span) != (held.model_id, held.span):
        state.ignore()
        return
    wrong = held_error(state, event.held)
    if wrong is not None:
        fail_load(state, node, wrong)
        return
    _take_held(state, node, event.held, NodeTrigger.LOADED)
    probe(state, node)


def _is_assigned(node: NodeRecord, held: HeldSpan) -> bool:
    assigned = (node.epoch, node.model_id, node.span)
    return assigned == (held.allocation_epoch, held.model_id, held.span)


def load_failed(state: CoreState, event: ev.NodeLoadFailed) -> None:
    """The node could not load; it stays attached."""
    node = _loading(state, event.node_id, event.incarnation, event.epoch)
    if node is None:
        return
    fail_load(state, node, event.reason)


def detached(state: CoreState, event: ev.NodeDetached) -> None:
    """The control stream closed: the node is out of every route at once."""
    node = state.node(event.node_id, event.incarnation)
    if node is not None:
        reason = Reason(code="node_lost", message=f"{node.node_id} has disconnected")
        lose_node(state, node, reason, tell=False)


def gateway_link_changed(state: CoreState, event: ev.GatewayLinkChanged) -> None:
    """Tokens can or cannot flow. Known apart from nodes: it may come before the control stream."""
    if event.is_up:
        if state.gateway_links.get(event.node_id, event.incarnation) > event.incarnation:
            state.ignore()
            return
        state.gateway_links[event.node_id] = event.incarnation
        state.must_dispatch = True
        return
    if state.gateway_links.get(event.node_id) != event.incarnation:
        state.ignore()
        return
    del state.gateway_links[event.node_id]
    node = state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation:
        return
    reason = Reason(
        code="gateway_link_down", message=f"{node.node_id} lost its stream to the gateway"
    )
    for pipeline_id in list(node.pipelines):
        pipeline = state.pipelines[pipeline_id]
        if node.node_id in (pipeline.route[0].node_id, pipeline.route[-1].node_id):
            break_pipeline(state, pipeline, node.node_id, reason)


def _evict(
    state: CoreState, node_id: NodeId, incarnation: int, reason: Reason, *, may_rejoin: bool
) -> None:
    state.emit(
        fx.EvictNode(node_id=node_id, incarnation=incarnation, reason=reason, may_rejoin=may_rejoin)
    )
