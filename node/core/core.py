"""The only way in: `handle(event, now_ms) -> [effect]`. One caller at a time."""

from typing import assert_never

from node.core import events as ev
from node.core import guessing
from node.core.effects import Effect, ReportHopBroken, SendToGateway
from node.core.lifecycle import Lifecycle
from node.core.machines import NodeState
from node.core.messages import KeptRoute, StatusCode
from node.core.sessions import Sessions
from node.core.speculation import Proposers
from node.core.state import SWEEP_MS, Counters, Limits, NodeData
from plait.types import DraftState, HeldSpan, NodeId, Reason


class NodeCore:
    """Decides everything a node does. `now_ms` is monotonic and never goes back."""

    def __init__(
        self,
        node_id: NodeId,
        incarnation: int,
        limits: Limits | None = None,
        *,
        proposers: Proposers | None = None,
    ) -> None:
        limits = limits if limits is not None else Limits()
        self._node = NodeData(node_id=node_id, incarnation=incarnation, limits=limits)
        if proposers is not None:
            self._node.proposers = proposers
        self._node.frame_bytes_max = limits.frame_bytes_max
        self._sessions = Sessions(self._node)
        self._lifecycle = Lifecycle(self._node, self._sessions)

    @property
    def state(self) -> NodeState:
        return self._node.state

    @property
    def held(self) -> HeldSpan | None:
        """What is in memory now."""
        return self._node.held

    @property
    def counters(self) -> Counters:
        """Live totals; read only."""
        return self._node.counters

    @property
    def draft_state(self) -> tuple[DraftState, str]:
        """What the draft model does, and why it does not guess."""
        return self._node.draft_state, self._node.draft_why

    @property
    def num_sessions(self) -> int:
        return len(self._node.sessions)

    def next_deadline_ms(self) -> int | None:
        """When `handle(Ticked())` is due at the latest; None while nothing can fall due."""
        node = self._node
        is_busy = node.sessions or len(node.kept) or node.state is NodeState.DRAINING
        return node.swept_ms + SWEEP_MS if is_busy else None

    def handle(self, event: ev.Event, now_ms: int) -> list[Effect]:
        """Take one event in; the effects are to be performed in order."""
        out: list[Effect] = []
        match event:
            case ev.ActivationsReceived():
                self._sessions.activations(event.sender, event.activations, now_ms, out)
            case ev.StepFinished():
                self._sessions.finished_step(event.outcomes, now_ms, out)
            case ev.TokenReceived():
                self._sessions.tokens.returned(event.sender, event.token, now_ms, out)
            case ev.Ticked():
                self._sweep(now_ms, out)
            case (
                ev.ControlAttached()
                | ev.ControlDetached()
                | ev.DraftModelChanged()
                | ev.SpanAssigned()
                | ev.SpanUnassigned()
                | ev.SpanLoaded()
                | ev.SpanLoadFailed()
                | ev.DrainOrdered()
                | ev.StopAsked()
                | ev.Evicted()
            ):
                self._handle_lifecycle(event, now_ms, out)
            case _:
                self._handle_data(event, now_ms, out)
        if self._node.state is NodeState.DRAINING and not self._node.sessions:
            self._lifecycle.sweep(now_ms, out)
        return out

    def _handle_data(self, event: ev.DataEvent, now_ms: int, out: list[Effect]) -> None:
        sessions, node = self._sessions, self._node
        match event:
            case ev.RequestStarted():
                sessions.open(None, event.open, event.prompt_token_ids, now_ms, out)
            case ev.OpenReceived():
                sessions.open(event.sender, event.open, (), now_ms, out)
            case ev.OpenRefused():
                sessions.refuse(event, out)
            case ev.KvReserved():
                sessions.reserved(event, now_ms, out)
            case ev.KvRefused():
                sessions.not_reserved(event, out)
            case ev.Drafted():
                sessions.drafted(event, now_ms, out)
            case ev.CloseReceived():
                sessions.close(event.sender, event.request_id, event.epoch, event.reason, out)
            case ev.BrokenReceived():
                sessions.broken(event, out)
            case ev.PrefixShortReceived():
                sessions.prefix_short(event, now_ms, out)
            case ev.FrameRejected():
                sessions.rejected(event, out)
            case ev.SendRefused():
                sessions.send_refused(event.neighbour_id, event.request_id, event.epoch, out)
            case ev.LinkUp():
                pass
            case ev.LinkDown():
                sessions.link_down(event.neighbour_id, event.reason, out)
                if node.is_attached:
                    out.append(ReportHopBroken(event.neighbour_id, event.reason))
            case ev.GatewayLinkUp():
                node.gateway_down_ms = None
                self._tell_gateway(out)
            case ev.GatewayLinkDown():
                if node.gateway_down_ms is None:
                    node.gateway_down_ms = now_ms
            case ev.ActivationsReceived() | ev.StepFinished() | ev.TokenReceived():
                raise AssertionError("handled above, where it is quick")
            case _:
                assert_never(event)

    def _handle_lifecycle(self, event: ev.LifecycleEvent, now_ms: int, out: list[Effect]) -> None:
        lifecycle = self._lifecycle
        match event:
            case ev.ControlAttached():
                lifecycle.attached(event, out)
            case ev.ControlDetached():
                self._node.is_attached = False
            case ev.DraftModelChanged():
                guessing.draft_model_changed(self._node, event, now_ms, out)
            case ev.SpanAssigned():
                lifecycle.assigned(event, out)
            case ev.SpanUnassigned():
                lifecycle.unassigned(event, out)
            case ev.SpanLoaded():
                lifecycle.loaded(event, out)
            case ev.SpanLoadFailed():
                lifecycle.load_failed(event, out)
            case ev.DrainOrdered():
                lifecycle.drain(event, now_ms, out)
            case ev.StopAsked():
                lifecycle.stop(event, now_ms, out)
            case ev.Evicted():
                lifecycle.evicted(event, out)
            case _:
                assert_never(event)

    def _tell_gateway(self, out: list[Effect]) -> None:
        """It may have restarted, or have given routes up that it could not say so to."""
        node = self._node
        out.extend(SendToGateway(kept) for kept in node.kept.messages())
        for session in node.sessions.values():
            if not session.is_last:
                kept = KeptRoute(
                    request_id=session.request_id,
                    ticket=session.open.ticket,
                    position=session.due_position,
                )
                out.append(SendToGateway(kept))

    def _sweep(self, now_ms: int, out: list[Effect]) -> None:
        """Ends what has outlived its time."""
        node = self._node
        if now_ms < node.swept_ms + SWEEP_MS and node.swept_ms:
            return
        node.swept_ms = now_ms
        down_ms = node.gateway_down_ms
        is_gateway_lost = down_ms is not None and now_ms - down_ms >= node.limits.gateway_grace_ms
        for session in list(node.sessions.values()):
            if now_ms - session.active_ms >= node.limits.session_idle_ms:
                code, word, text = StatusCode.DEADLINE_EXCEEDED, "session_idle", "nothing came"
            elif not node.is_attached and now_ms >= session.ticket_end_ms:
                code, word = StatusCode.PERMISSION_DENIED, "ticket_expired"
                text = "the ticket ended while the coordinator was away"
            elif is_gateway_lost and (session.is_first or session.is_last):
                code, word, text = StatusCode.UNAVAILABLE, "gateway_lost", "the gateway is away"
            else:
                continue
            self._sessions.ends.break_session(session, code, Reason(code=word, message=text), out)
        guessing.go_on_without_late_guesses(node, now_ms, out)
        node.kept.sweep(now_ms)
        self._lifecycle.sweep(now_ms, out)
