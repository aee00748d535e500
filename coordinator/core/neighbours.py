"""What nodes know of each other: measured round trips, hops that broke, pairs without a way."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.machines import NodeState
from coordinator.core.settle import break_pipeline
from coordinator.core.state import CoreState, HopBlock, NodeRecord
from coordinator.core.timers import TimerKind
from plait.types import NodeId, Reason


def pair(a: NodeId, b: NodeId) -> tuple[NodeId, NodeId]:
    """A hop, whatever its direction."""
    return (a, b) if a <= b else (b, a)


def probe(state: CoreState, node: NodeRecord) -> None:
    """Have `node` measure the way to a few others it has not measured: first those with which it
    may share a hop, then any."""
    known = state.links.measured()
    others = [
        other
        for other in state.nodes.values()
        if other.node_id != node.node_id
        and other.addresses
        and other.profile is not None
        and (node.node_id, other.node_id) not in known
        and other.state is not NodeState.DRAINING
    ]
    others.sort(key=lambda other: (not _may_follow(node, other), -other.attachment))
    chosen = others[: state.limits.neighbours_max]
    if chosen:
        state.emit(
            fx.ProbeNeighbours(
                node_id=node.node_id,
                incarnation=node.incarnation,
                neighbours=tuple((other.node_id, other.addresses) for other in chosen),
            )
        )


def _may_follow(a: NodeRecord, b: NodeRecord) -> bool:
    if a.span is None or b.span is None or a.model_id != b.model_id:
        return False
    return a.span.end == b.span.start or b.span.end == a.span.start


def neighbour_measured(state: CoreState, event: ev.NeighbourMeasured) -> None:
    """A round trip and the bandwidth that way, or that there is no way."""
    one, two = event.node_id, event.neighbour_id
    if one not in state.nodes or two not in state.nodes or one == two:
        state.ignore()
        return
    if event.is_reachable:
        state.links.set_rtt(one, two, event.rtt_ms)
        state.links.set_bytes_per_s(one, two, event.bytes_per_s)
        state.links_version += 1
        state.unreachable.pop((one, two), None)
        state.hop_blocks.pop(pair(one, two), None)
        state.must_dispatch = True
    else:
        state.unreachable[one, two] = None


def hop_broke(state: CoreState, event: ev.HopBroke) -> None:
    """A stream between two nodes is gone: chains over it break, the hop rests for a while."""
    one, two = event.node_id, event.neighbour_id
    if one not in state.nodes or one == two:
        state.ignore()
        return
    hop, limits = pair(one, two), state.limits
    block = state.hop_blocks.setdefault(hop, HopBlock(0, 0))
    block.num_breaks += 1
    rest_ms = min(limits.hop_block_max_ms, limits.hop_block_ms * 2 ** (block.num_breaks - 1))
    block.until_ms = state.now_ms + rest_ms
    state.timers.at(block.until_ms, TimerKind.DISPATCH)
    reason = Reason(code="hop_broken", message=f"the link of {one} and {two} broke")
    for pipeline_id in list(state.nodes[one].pipelines):
        pipeline = state.pipelines[pipeline_id]
        nodes = [stage.node_id for stage in pipeline.route]
        ring = zip(nodes, nodes[1:] + nodes[:1], strict=True)
        if any(pair(a, b) == hop for a, b in ring):
            break_pipeline(state, pipeline, two, reason)


def is_blocked(state: CoreState, a: NodeId, b: NodeId) -> bool:
    """Whether a route must not use this hop now. One end that can dial is enough."""
    block = state.hop_blocks.get(pair(a, b))
    if block is not None and block.until_ms > state.now_ms:
        return True
    return (a, b) in state.unreachable and (b, a) in state.unreachable
