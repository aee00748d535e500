"""Tokens: drawn on the last stage, round the ring to the first one, whose next rows they are.

A frame may hold guesses behind its row (`Activations.drafted_ids`). The last stage accepts those
that it draws itself, one after the other, and tells only the token behind them: how far away it is
says how many were right, since the first stage knows what it guessed.
"""

from collections.abc import Iterable

from node.core import checks, guessing
from node.core.effects import Effect, Send, SendToGateway
from node.core.ends import Ends
from node.core.events import DrawnToken, RowOutcome
from node.core.messages import StatusCode, Token
from node.core.state import NodeData, Session
from plait.types import FinishReason, NodeId


class Tokens:
    """Handlers of tokens; each appends its effects to `out`."""

    def __init__(self, node: NodeData, ends: Ends) -> None:
        self._node = node
        self._counters = node.counters
        self._ends = ends

    def drawn(
        self, session: Session, outcome: RowOutcome, token_id: int, now_ms: int, out: list[Effect]
    ) -> None:
        """The last stage's decision: go on, or finish and why. `token_id` comes after what was
        accepted. The ring hears first: there a step waits."""
        num_guesses = len(session.drafted_ids)
        session.settle(session.sent_position)
        last = Token(
            session.request_id,
            session.epoch,
            session.sent_position,
            token_id,
            logprob=outcome.logprob,
            top_logprobs=outcome.top_logprobs,
            num_guesses=num_guesses,
        )
        tokens = [*_accepted(session, outcome.accepted), last]
        told: list[Effect] = []
        for token in tokens:
            self._tell(session, token, told)
            if token.finish_reason is not None:
                break
        if not session.is_first:
            ring = Token(
                token.request_id,
                token.epoch,
                token.position,
                token.token_id,
                finish_reason=token.finish_reason,
                drafts_max=session.drafts_max,
            )
            out.append(Send(session.first_id, ring))
        out.extend(told)
        if session.is_first and token.finish_reason is None:
            guessing.decode(self._node, session, [t.token_id for t in tokens], now_ms, out)
        if token.finish_reason is not None:
            self._counters.sessions_finished += 1
            self._ends.forget(session, out)

    def _tell(self, session: Session, token: Token, out: list[Effect]) -> None:
        """The gateway hears every token."""
        session.num_generated += 1
        self._counters.tokens_drawn += 1
        token.finish_reason = checks.finish_reason(session, token.token_id, token.position)
        self._node.kept.drew(token)
        out.append(SendToGateway(token))

    def returned(self, sender: NodeId, token: Token, now_ms: int, out: list[Effect]) -> None:
        """A token round the ring: the first stage's next row, or the end."""
        session = self._ends.match(token.request_id, token.epoch)
        if session is None:
            return
        if not session.is_first or session.is_last or session.last_id != sender:
            self._counters.frames_foreign += 1
            return
        if token.position < session.due_position or session.held_row is not None:
            self._counters.frames_duplicate += 1
            return
        session.active_ms = now_ms
        if token.finish_reason is not None:
            self._finish(session, token.finish_reason, out)
            return
        problem = checks.token_problem(session, token)
        if problem is not None:
            self._counters.frames_malformed += 1
            code = StatusCode.INVALID_ARGUMENT
            self._ends.break_session(session, code, problem, out, blamed=sender)
            return
        accepted = session.drafted_ids[: token.position - session.due_position]
        session.settle(token.position)
        session.drafts_max = min(session.drafts_max, token.drafts_max)
        guessing.decode(self._node, session, [*accepted, token.token_id], now_ms, out)

    def _finish(self, session: Session, reason: FinishReason, out: list[Effect]) -> None:
        self._counters.sessions_finished += 1
        self._ends.close_forward(session, reason, out)
        self._ends.forget(session, out)


def _accepted(session: Session, drawn: Iterable[DrawnToken]) -> list[Token]:
    """Guesses that the last stage drew itself: they come before its last token."""
    tokens = list(drawn)
    first = session.sent_position - len(tokens)
    return [
        Token(
            session.request_id,
            session.epoch,
            position,
            token.token_id,
            logprob=token.logprob,
            top_logprobs=token.top_logprobs,
            is_guess=True,
        )
        for position, token in enumerate(tokens, first)
    ]
