"""The node's own life: what it holds, how it leaves."""

from dataclasses import replace

from node.core.effects import (
    Effect,
    Exit,
    LoadSpan,
    ReportDrainAsked,
    ReportDrained,
    ReportLoadFailed,
    ReportSpanLoaded,
    UnloadSpan,
)
from node.core.events import (
    ControlAttached,
    DrainOrdered,
    Evicted,
    ModelOffered,
    SpanAssigned,
    SpanLoaded,
    SpanLoadFailed,
    SpanUnassigned,
    StopAsked,
)
from node.core.machines import NodeState, NodeTrigger, next_node_state
from node.core.messages import StatusCode
from node.core.sessions import Sessions
from node.core.state import NodeData
from plait.types import HeldSpan, Reason


class Lifecycle:
    """Handlers of the control plane; each appends its effects to `out`."""

    def __init__(self, node: NodeData, sessions: Sessions) -> None:
        self._node = node
        self._sessions = sessions

    def attached(self, event: ControlAttached, out: list[Effect]) -> None:
        """Welcome: what the network serves and how large a frame may be."""
        node = self._node
        node.is_attached = True
        offered = {offer.spec.model_id: offer for offer in event.models}
        node.models = offered | {
            model_id: offer
            for model_id, offer in node.models.items()
            if node.held is not None
            and node.held.model_id == model_id
            and (model_id not in offered or _same_numbers(offered[model_id], offer))
        }
        node.frame_bytes_max = event.frame_bytes_max
        if node.is_stopping:
            out.append(ReportDrainAsked("stopping", node.limits.drain_ms))

    def assigned(self, event: SpanAssigned, out: list[Effect]) -> None:
        """Hold these layers. What is held already is reported at once and keeps serving."""
        node = self._node
        if node.state in (NodeState.DRAINING, NodeState.GONE):
            return
        offer = node.models.get(event.model_id)
        if offer is None or event.span.end > offer.spec.num_layers:
            message = f"layers {event.span} of {event.model_id!r} were never offered to this node"
            reason = Reason(code="model_not_found", message=message)
            out.append(ReportLoadFailed(event.allocation_epoch, StatusCode.NOT_FOUND, reason))
            return
        if node.loading_epoch is None and self._is_held(event):
            assert node.held is not None, "_is_held() says so"
            node.held = self._with_epoch(event.allocation_epoch)
            node.assigned = event
            out.append(ReportSpanLoaded(node.held))
            return
        node.assigned = event
        self._move(NodeTrigger.ASSIGN)
        self._break_all("span_reassigned", "this node was given other layers", out)
        if node.loading_epoch is None:
            self._start_load(event, out)

    def unassigned(self, event: SpanUnassigned, out: list[Effect]) -> None:
        """Hold nothing and stand by."""
        node = self._node
        if node.state in (NodeState.DRAINING, NodeState.GONE):
            return
        node.assigned = None
        self._break_all("span_reassigned", "this node was told to stand by", out)
        if node.loading_epoch is None:
            self._empty(out)

    def loaded(self, event: SpanLoaded, out: list[Effect]) -> None:
        """A load ended; if the plan has moved on meanwhile, follow it."""
        node = self._node
        node.loading_epoch = None
        node.held = event.held
        if node.state is not NodeState.LOADING:
            return
        if node.assigned is None:
            self._empty(out)
        elif node.assigned.allocation_epoch == event.held.allocation_epoch:
            self._move(NodeTrigger.LOADED)
            out.append(ReportSpanLoaded(event.held))
        elif self._is_held(node.assigned):
            node.held = self._with_epoch(node.assigned.allocation_epoch)
            self._move(NodeTrigger.LOADED)
            out.append(ReportSpanLoaded(node.held))
        else:
            self._start_load(node.assigned, out)

    def load_failed(self, event: SpanLoadFailed, out: list[Effect]) -> None:
        """Nothing is held now; the coordinator decides what next."""
        node = self._node
        node.loading_epoch = None
        node.held = None
        out.append(ReportLoadFailed(event.allocation_epoch, event.code, event.reason))
        if node.state is not NodeState.LOADING:
            return
        is_newer = (
            node.assigned is not None and node.assigned.allocation_epoch != event.allocation_epoch
        )
        if is_newer and node.assigned is not None:
            self._start_load(node.assigned, out)
        else:
            node.assigned = None
            self._move(NodeTrigger.EMPTIED)

    def drain(self, event: DrainOrdered, now_ms: int, out: list[Effect]) -> None:
        """Finish what runs, take nothing new, then leave."""
        self._start_draining(now_ms, event.limit_ms or self._node.limits.drain_ms, out)

    def stop(self, event: StopAsked, now_ms: int, out: list[Effect]) -> None:
        """The owner's wish: the same, announced first."""
        node = self._node
        if node.state is NodeState.GONE or node.is_stopping:
            return
        node.is_stopping = True
        limit_ms = event.limit_ms if event.limit_ms is not None else node.limits.drain_ms
        if node.is_attached:
            out.append(ReportDrainAsked(event.reason, limit_ms))
        self._start_draining(now_ms, limit_ms, out)

    def evicted(self, event: Evicted, out: list[Effect]) -> None:
        """Dropped by the coordinator: what runs here belongs to nobody."""
        node = self._node
        node.is_attached = False
        self._break_all("node_evicted", "the coordinator dropped this node", out)
        if not event.may_rejoin and node.state is not NodeState.GONE:
            self._move(NodeTrigger.LEAVE)
            out.append(Exit(3, event.reason))

    def sweep(self, now_ms: int, out: list[Effect]) -> None:
        """Leave when the last request has ended or the limit has passed."""
        node = self._node
        if node.state is not NodeState.DRAINING:
            return
        is_over = node.drain_end_ms is not None and now_ms >= node.drain_end_ms
        if node.sessions and not is_over:
            return
        self._break_all("node_draining", "this node left before the request ended", out)
        if node.is_attached:
            out.append(ReportDrained())
        self._move(NodeTrigger.LEAVE)
        out.append(Exit(0, Reason(code="drained", message="everything that ran here has ended")))

    def _start_draining(self, now_ms: int, limit_ms: int, out: list[Effect]) -> None:
        node = self._node
        if node.state is NodeState.GONE:
            return
        self._move(NodeTrigger.DRAIN)
        end_ms = now_ms + limit_ms
        node.drain_end_ms = end_ms if node.drain_end_ms is None else min(node.drain_end_ms, end_ms)
        self.sweep(now_ms, out)

    def _start_load(self, event: SpanAssigned, out: list[Effect]) -> None:
        node = self._node
        offer = node.models[event.model_id]
        node.held = None
        node.loading_epoch = event.allocation_epoch
        out.append(
            LoadSpan(
                spec=offer.spec,
                source=offer.source,
                span=event.span,
                allocation_epoch=event.allocation_epoch,
                kv_tokens_min=event.kv_tokens_min,
            )
        )

    def _empty(self, out: list[Effect]) -> None:
        if self._node.held is not None:
            self._node.held = None
            out.append(UnloadSpan())
        self._move(NodeTrigger.EMPTIED)

    def _is_held(self, event: SpanAssigned) -> bool:
        held, offer = self._node.held, self._node.models.get(event.model_id)
        return (
            held is not None
            and offer is not None
            and held.model_id == event.model_id
            and held.weight_format is offer.spec.weight_format
            and held.span == event.span
            and held.kv_tokens_max >= event.kv_tokens_min
        )

    def _with_epoch(self, allocation_epoch: int) -> HeldSpan:
        held = self._node.held
        assert held is not None, "the caller has looked"
        return replace(held, allocation_epoch=allocation_epoch)

    def _break_all(self, code: str, message: str, out: list[Effect]) -> None:
        for session in list(self._node.sessions.values()):
            self._sessions.ends.break_session(
                session, StatusCode.UNAVAILABLE, Reason(code=code, message=message), out
            )

    def _move(self, trigger: NodeTrigger) -> None:
        self._node.state = next_node_state(self._node.state, trigger)


def _same_numbers(new: ModelOffered, old: ModelOffered) -> bool:
    """A network that now serves a model in other numbers wants it loaded anew."""
    return new.spec.weight_format is old.spec.weight_format
