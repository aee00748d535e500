"""Requests on this stage: opening, rows in, rows out, tokens, ends.

A request has at most one session here. What belongs to an ended or older epoch is dropped and
counted; what contradicts the session ends that session, and no other.
"""

from collections.abc import Sequence

from node.core import checks, opening, prefixes, rows
from node.core.effects import Dial, Effect, ReleaseKv, ReserveKv, Send, SendToGateway
from node.core.events import (
    BrokenReceived,
    FrameRejected,
    KvRefused,
    KvReserved,
    OpenRefused,
    PrefixShortReceived,
    RowOutcome,
)
from node.core.machines import SessionState
from node.core.messages import (
    ROWS_INVALID,
    Activations,
    Broken,
    Close,
    Opened,
    StageOpen,
    StatusCode,
    Token,
)
from node.core.state import NodeData, Session
from plait.types import FinishReason, NodeId, Reason, RequestId


class Sessions:
    """Handlers of the data plane; each appends its effects to `out`."""

    def __init__(self, node: NodeData) -> None:
        self._node = node
        self._counters = node.counters

    # Opening

    def open(
        self,
        sender: NodeId | None,
        opened: StageOpen,
        prompt: Sequence[int],
        now_ms: int,
        out: list[Effect],
    ) -> None:
        """A verified Open: reserve, or say why not."""
        node = self._node
        current = node.sessions.get(opened.request_id)
        is_late = opened.epoch <= node.ended.get(opened.request_id, 0)
        if is_late or (current is not None and current.epoch > opened.epoch):
            self._counters.frames_late += 1
            return
        refusal = opening.refusal(node, opened, prompt)
        spec = node.spec()
        if refusal is None and current is not None and current.epoch == opened.epoch:
            message = "this attempt of the request is open already"
            reason = Reason(code="ticket_replayed", message=message)
            refusal = StatusCode.PERMISSION_DENIED, reason
        if refusal is not None or spec is None:
            assert refusal is not None, "refusal() lets nothing through without a held model"
            self.refuse(opening.refused(sender, opened, *refusal), out)
            return
        if current is not None:
            self._close_forward(current, FinishReason.CANCELLED, out)
            self._forget(current, out)
        session = Session(opened, spec, now_ms=now_ms, prompt=prompt)
        if session.is_first:
            session.open = prefixes.named(session)
        node.sessions[opened.request_id] = session
        if session.next_id is not None:
            out.append(Dial(session.next_id, opened.stages[opened.stage_index + 1].addresses))
        elif not session.is_first:
            out.append(Dial(session.first_id, opened.stages[0].addresses))
        out.append(ReserveKv(session.open, prefixes.cache_path(opened, spec)))

    def refuse(self, event: OpenRefused, out: list[Effect]) -> None:
        """Answer whoever sent an Open that will not do. Nothing was reserved."""
        self._counters.opens_refused += 1
        if event.code is StatusCode.PERMISSION_DENIED:
            self._counters.tickets_refused += 1
        broken = Broken(
            request_id=event.request_id,
            epoch=event.epoch,
            stage_index=event.stage_index,
            node_id=self._node.node_id,
            code=event.code,
            reason=event.reason,
        )
        out.append(SendToGateway(broken) if event.sender is None else Send(event.sender, broken))

    def reserved(self, event: KvReserved, now_ms: int, out: list[Effect]) -> None:
        """The engine takes it: open the next stage, and on the first one start the prefill."""
        request_id, epoch = event.request_id, event.epoch
        session = self._find(request_id, epoch)
        if session is None or session.state is not SessionState.OPENING:
            return
        session.state = SessionState.OPEN
        session.active_ms = now_ms
        self._counters.sessions_opened += 1
        prefixes.agree(session, event.cached_tokens, out)
        if session.next_id is not None:
            out.append(Send(session.next_id, session.open))
        else:
            self._node.kept.opened(session.open)
            out.append(SendToGateway(Opened(request_id=request_id, epoch=epoch)))
        if session.is_first:
            rows.prefill(self._node, session, out)

    def not_reserved(self, event: KvRefused, out: list[Effect]) -> None:
        """The engine has no slots, or would not have this request."""
        session = self._find(event.request_id, event.epoch)
        if session is not None:
            self.break_session(session, event.code, event.reason, out)

    def prefix_short(self, event: PrefixShortReceived, now_ms: int, out: list[Effect]) -> None:
        """A later stage has less of the prompt: its rows run again from there on."""
        short = event.short
        if (session := self._from_next(event.sender, short.request_id, short.epoch)) is None:
            return
        if session.is_first and not session.prompt_token_ids:
            self._counters.frames_malformed += 1
            code, sender = StatusCode.INVALID_ARGUMENT, event.sender
            self.break_session(session, code, prefixes.MISSED_LATE, out, blamed=sender)
            return
        if not prefixes.shorten(session, short, out):
            self._counters.frames_duplicate += 1
            return
        session.active_ms = now_ms
        if session.is_first:
            rows.prefill(self._node, session, out)

    # Rows

    def activations(
        self, sender: NodeId, arrived: Activations, now_ms: int, out: list[Effect]
    ) -> None:
        """Rows from the stage before: check, then queue them for a step."""
        session = self._match(arrived.request_id, arrived.epoch)
        if session is None:
            return
        if session.previous_id != sender:
            self._counters.frames_foreign += 1
            return
        if arrived.position < session.next_position:
            self._counters.frames_duplicate += 1
            return
        if session.awaits_start and arrived.position > session.next_position:
            self._counters.frames_late += 1
            return
        problem = checks.rows_problem(session, arrived)
        if problem is not None:
            self._counters.frames_malformed += 1
            self.break_session(session, StatusCode.INVALID_ARGUMENT, problem, out, blamed=sender)
            return
        session.active_ms = now_ms
        session.awaits_start = False
        rows.submit(
            session,
            arrived.position,
            arrived.num_tokens,
            out,
            hidden=arrived.payload,
            sample=arrived.sample,
            block_name=arrived.block_name,
        )

    def finished_step(self, outcomes: Sequence[RowOutcome], now_ms: int, out: list[Effect]) -> None:
        """Send on what a step made; results of ended sessions are nobody's any more."""
        for outcome in outcomes:
            session = self._find(outcome.request_id, outcome.epoch)
            if session is None:
                continue
            session.active_ms = now_ms
            if outcome.error is not None:
                self._break_step(session, outcome.error, out)
                continue
            if outcome.position != session.sent_position:
                continue  # of before a rewind
            session.sent_position = outcome.position + outcome.num_tokens
            if session.next_id is None:
                if outcome.token_id is not None:
                    self._draw(session, outcome, outcome.token_id, out)
            elif outcome.hidden is not None:
                rows.send_on(self._node, session, outcome, outcome.hidden, out)
            else:
                self.break_session(session, StatusCode.INTERNAL, rows.NOTHING_CAME, out)

    def _break_step(self, session: Session, error: Reason, out: list[Effect]) -> None:
        """Rows that nothing can be made of are the fault of who sent them."""
        if error.code != ROWS_INVALID or session.previous_id is None:
            self.break_session(session, checks.engine_error_code(error), error, out)
            return
        self._counters.frames_malformed += 1
        code, sender = StatusCode.INVALID_ARGUMENT, session.previous_id
        self.break_session(session, code, error, out, blamed=sender)

    # Tokens

    def _draw(
        self, session: Session, outcome: RowOutcome, token_id: int, out: list[Effect]
    ) -> None:
        """The last stage's decision: go on, or finish and why."""
        position = session.sent_position
        session.num_generated += 1
        self._counters.tokens_drawn += 1
        finish = checks.finish_reason(session, token_id, position)
        token = Token(
            session.request_id,
            session.epoch,
            position,
            token_id,
            finish_reason=finish,
            logprob=outcome.logprob,
            top_logprobs=outcome.top_logprobs,
        )
        self._node.kept.drew(token)
        out.append(SendToGateway(token))
        if session.is_first:
            if finish is None:
                rows.decode(session, position, token_id, out)
        else:
            ring = Token(
                session.request_id, session.epoch, position, token_id, finish_reason=finish
            )
            out.append(Send(session.first_id, ring))
        if finish is not None:
            self._counters.sessions_finished += 1
            self._forget(session, out)

    def token(self, sender: NodeId, token: Token, now_ms: int, out: list[Effect]) -> None:
        """A token round the ring: the first stage's next row, or the end."""
        session = self._match(token.request_id, token.epoch)
        if session is None:
            return
        if not session.is_first or session.is_last or session.last_id != sender:
            self._counters.frames_foreign += 1
            return
        if token.position < session.next_position:
            self._counters.frames_duplicate += 1
            return
        session.active_ms = now_ms
        if token.finish_reason is not None:
            self._counters.sessions_finished += 1
            self._close_forward(session, token.finish_reason, out)
            self._forget(session, out)
            return
        problem = checks.token_problem(session, token)
        if problem is not None:
            self._counters.frames_malformed += 1
            self.break_session(session, StatusCode.INVALID_ARGUMENT, problem, out, blamed=sender)
            return
        rows.decode(session, token.position, token.token_id, out)

    # Ends

    def close(
        self,
        sender: NodeId | None,
        request_id: RequestId,
        epoch: int,
        reason: FinishReason,
        out: list[Effect],
    ) -> None:
        """Free a request here and further down the chain. Idempotent."""
        if sender is None:
            self._node.kept.forget(request_id, epoch)
        session = self._node.sessions.get(request_id)
        if session is None or session.epoch > epoch:
            if sender is None:
                self._node.remember_end(request_id, epoch)
            return
        if sender not in (None, session.previous_id):
            self._counters.frames_foreign += 1
            return
        self._counters.sessions_finished += 1
        self._close_forward(session, reason, out)
        self._forget(session, out, epoch=epoch)

    def broken(self, event: BrokenReceived, out: list[Effect]) -> None:
        """The next stage gave up: so do we, and the stages before; the first tells the gateway."""
        broken = event.broken
        if (session := self._from_next(event.sender, broken.request_id, broken.epoch)) is None:
            return
        self._counters.sessions_broken += 1
        if session.previous_id is not None:
            out.append(Send(session.previous_id, broken))
        else:
            out.append(SendToGateway(broken))
        self._forget(session, out)

    def rejected(self, event: FrameRejected, out: list[Effect]) -> None:
        """A frame that made no sense: it costs its own request, if that, and nothing else."""
        self._counters.frames_malformed += 1
        if event.request_id is None or event.sender is None:
            return
        session = self._find(event.request_id, event.epoch)
        if session is not None and session.previous_id == event.sender:
            self.break_session(
                session, StatusCode.INVALID_ARGUMENT, event.reason, out, blamed=event.sender
            )

    def send_refused(
        self, neighbour_id: NodeId, request_id: RequestId, epoch: int, out: list[Effect]
    ) -> None:
        """The way to a neighbour is choked: this request gives way."""
        session = self._find(request_id, epoch)
        if session is not None:
            message = f"the link to {neighbour_id} has more queued than it may hold"
            reason = Reason(code="link_overloaded", message=message)
            self.break_session(
                session, StatusCode.RESOURCE_EXHAUSTED, reason, out, lost=neighbour_id
            )

    def link_down(self, neighbour_id: NodeId, why: str, out: list[Effect]) -> None:
        """Every session over a lost stream breaks; the neighbour is blamed."""
        reason = Reason(code="hop_lost", message=f"the link to {neighbour_id} is lost: {why}")
        for session in list(self._node.sessions.values()):
            if session.touches(neighbour_id):
                self.break_session(
                    session,
                    StatusCode.UNAVAILABLE,
                    reason,
                    out,
                    blamed=neighbour_id,
                    lost=neighbour_id,
                )

    def break_session(
        self,
        session: Session,
        code: StatusCode,
        reason: Reason,
        out: list[Effect],
        *,
        blamed: NodeId | None = None,
        lost: NodeId | None = None,
    ) -> None:
        """End a session here, tell the gateway and both directions of the chain.

        Args:
            blamed: who is at fault; this node where None.
            lost: a neighbour that cannot be told.
        """
        self._counters.sessions_broken += 1
        broken = Broken(
            request_id=session.request_id,
            epoch=session.epoch,
            stage_index=session.open.stage_index,
            node_id=blamed if blamed is not None else self._node.node_id,
            code=code,
            reason=reason,
        )
        out.append(SendToGateway(broken))
        if session.previous_id not in (None, lost):
            out.append(Send(session.previous_id, broken))
        if session.next_id != lost and session.state is SessionState.OPEN:
            self._close_forward(session, FinishReason.ERROR, out)
        self._forget(session, out)

    # Helpers

    def _find(self, request_id: RequestId, epoch: int) -> Session | None:
        session = self._node.sessions.get(request_id)
        return session if session is not None and session.epoch == epoch else None

    def _match(self, request_id: RequestId, epoch: int) -> Session | None:
        """The session that a frame names; where there is none, the frame is counted."""
        session = self._find(request_id, epoch)
        if session is None:
            if epoch <= self._node.ended.get(request_id, 0) or request_id in self._node.sessions:
                self._counters.frames_late += 1
            else:
                self._counters.frames_foreign += 1
        return session

    def _from_next(self, sender: NodeId, request_id: RequestId, epoch: int) -> Session | None:
        """The session whose next stage sent a frame about it; any other frame is counted."""
        session = self._match(request_id, epoch)
        if session is not None and session.next_id != sender:
            self._counters.frames_foreign += 1
            return None
        return session

    def _close_forward(self, session: Session, reason: FinishReason, out: list[Effect]) -> None:
        if session.next_id is not None:
            close = Close(request_id=session.request_id, epoch=session.epoch, reason=reason)
            out.append(Send(session.next_id, close))

    def _forget(self, session: Session, out: list[Effect], *, epoch: int | None = None) -> None:
        del self._node.sessions[session.request_id]
        self._node.kept.ended(session.request_id, session.epoch)
        self._node.remember_end(session.request_id, max(session.epoch, epoch or 0))
        out.append(ReleaseKv(session.request_id, session.epoch))
