"""Requests on this stage: opening, rows in, rows out, tokens, ends.

A request has at most one session here. What belongs to an ended or older epoch is dropped and
counted; what contradicts the session ends that session, and no other.
"""

from collections.abc import Sequence
from dataclasses import replace

from node.core import checks, guessing, opening, prefixes, rows, speculation
from node.core.effects import Dial, Effect, ReserveKv, Send, SendToGateway
from node.core.ends import Ends
from node.core.events import (
    BrokenReceived,
    Drafted,
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
    Opened,
    StageOpen,
    StatusCode,
)
from node.core.state import NodeData, Session
from node.core.tokens import Tokens
from plait.types import FinishReason, NodeId, Reason, RequestId


class Sessions:
    """Handlers of the data plane; each appends its effects to `out`."""

    def __init__(self, node: NodeData) -> None:
        self._node = node
        self._counters = node.counters
        self.ends = Ends(node)
        self.tokens = Tokens(node, self.ends)

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
            self.ends.close_forward(current, FinishReason.CANCELLED, out)
            self.ends.forget(current, out)
        session = Session(opened, spec, now_ms=now_ms, prompt=prompt)
        session.drafts_max = speculation.agreed(opened, node.limits.drafts_max)
        if session.drafts_max != (opened.drafts_max or 0):
            session.open = replace(opened, drafts_max=session.drafts_max)
        if session.is_first:
            session.open = prefixes.named(session)
            if session.drafts_max:
                guessing.begin(node, session, prompt)
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
        session = self.ends.find(request_id, epoch)
        if session is None or session.state is not SessionState.OPENING:
            return
        session.state = SessionState.OPEN
        session.active_ms = now_ms
        self._counters.sessions_opened += 1
        prefixes.agree(session, event.cached_tokens, out)
        if session.next_id is not None:
            out.append(Send(session.next_id, session.open))
        else:
            # Stages before have at least what was asked of this one: it is what the chain has.
            cached_tokens = session.start
            self._node.kept.opened(session.open, cached_tokens)
            done = Opened(request_id=request_id, epoch=epoch, cached_tokens=cached_tokens)
            out.append(SendToGateway(done))
        if session.is_first:
            rows.prefill(self._node, session, out)

    def not_reserved(self, event: KvRefused, out: list[Effect]) -> None:
        """The engine has no slots, or would not have this request."""
        session = self.ends.find(event.request_id, event.epoch)
        if session is not None:
            self.ends.break_session(session, event.code, event.reason, out)

    def prefix_short(self, event: PrefixShortReceived, now_ms: int, out: list[Effect]) -> None:
        """A later stage has less of the prompt: its rows run again from there on."""
        short = event.short
        if (session := self.ends.from_next(event.sender, short.request_id, short.epoch)) is None:
            return
        if session.is_first and not session.prompt_token_ids:
            self._counters.frames_malformed += 1
            code, sender = StatusCode.INVALID_ARGUMENT, event.sender
            self.ends.break_session(session, code, prefixes.MISSED_LATE, out, blamed=sender)
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
        session = self.ends.match(arrived.request_id, arrived.epoch)
        if session is None:
            return
        if session.previous_id != sender:
            self._counters.frames_foreign += 1
            return
        if arrived.position < session.due_position:
            self._counters.frames_duplicate += 1
            return
        if session.awaits_start and arrived.position > session.next_position:
            self._counters.frames_late += 1
            return
        problem = checks.rows_problem(session, arrived)
        if problem is not None:
            self._counters.frames_malformed += 1
            self.ends.break_session(
                session, StatusCode.INVALID_ARGUMENT, problem, out, blamed=sender
            )
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
            drafted_ids=arrived.drafted_ids,
        )

    def finished_step(self, outcomes: Sequence[RowOutcome], now_ms: int, out: list[Effect]) -> None:
        """Send on what a step made; results of ended sessions are nobody's any more."""
        for outcome in outcomes:
            session = self.ends.find(outcome.request_id, outcome.epoch)
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
                    self.tokens.drawn(session, outcome, outcome.token_id, now_ms, out)
            elif outcome.hidden is not None:
                rows.send_on(self._node, session, outcome, outcome.hidden, out)
            else:
                self.ends.break_session(session, StatusCode.INTERNAL, rows.NOTHING_CAME, out)

    def drafted(self, event: Drafted, now_ms: int, out: list[Effect]) -> None:
        """Guesses of the draft model: a row may wait for them."""
        session = self.ends.find(event.request_id, event.epoch)
        if session is not None:
            guessing.drafted(self._node, session, event, now_ms, out)

    def _break_step(self, session: Session, error: Reason, out: list[Effect]) -> None:
        """Rows that nothing can be made of are the fault of who sent them."""
        if error.code != ROWS_INVALID or session.previous_id is None:
            self.ends.break_session(session, checks.engine_error_code(error), error, out)
            return
        self._counters.frames_malformed += 1
        code, sender = StatusCode.INVALID_ARGUMENT, session.previous_id
        self.ends.break_session(session, code, error, out, blamed=sender)

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
        self.ends.close_forward(session, reason, out)
        self.ends.forget(session, out, epoch=epoch)

    def broken(self, event: BrokenReceived, out: list[Effect]) -> None:
        """The next stage gave up: so do we, and the stages before; the first tells the gateway."""
        broken = event.broken
        if (session := self.ends.from_next(event.sender, broken.request_id, broken.epoch)) is None:
            return
        self._counters.sessions_broken += 1
        if session.previous_id is not None:
            out.append(Send(session.previous_id, broken))
        else:
            out.append(SendToGateway(broken))
        self.ends.forget(session, out)

    def rejected(self, event: FrameRejected, out: list[Effect]) -> None:
        """A frame that made no sense: it costs its own request, if that, and nothing else."""
        self._counters.frames_malformed += 1
        if event.request_id is None or event.sender is None:
            return
        session = self.ends.find(event.request_id, event.epoch)
        if session is not None and session.previous_id == event.sender:
            self.ends.break_session(
                session, StatusCode.INVALID_ARGUMENT, event.reason, out, blamed=event.sender
            )

    def send_refused(
        self, neighbour_id: NodeId, request_id: RequestId, epoch: int, out: list[Effect]
    ) -> None:
        """The way to a neighbour is choked: this request gives way."""
        session = self.ends.find(request_id, epoch)
        if session is not None:
            message = f"the link to {neighbour_id} has more queued than it may hold"
            reason = Reason(code="link_overloaded", message=message)
            self.ends.break_session(
                session, StatusCode.RESOURCE_EXHAUSTED, reason, out, lost=neighbour_id
            )

    def link_down(self, neighbour_id: NodeId, why: str, out: list[Effect]) -> None:
        """Every session over a lost stream breaks; the neighbour is blamed."""
        reason = Reason(code="hop_lost", message=f"the link to {neighbour_id} is lost: {why}")
        for session in list(self._node.sessions.values()):
            if session.touches(neighbour_id):
                self.ends.break_session(
                    session,
                    StatusCode.UNAVAILABLE,
                    reason,
                    out,
                    blamed=neighbour_id,
                    lost=neighbour_id,
                )
