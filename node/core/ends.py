"""Which session a frame is of, and how sessions end: shared by all handlers of the data plane."""

from node.core.effects import Effect, ReleaseKv, Send, SendToGateway
from node.core.machines import SessionState
from node.core.messages import Broken, Close, StatusCode
from node.core.state import NodeData, Session
from plait.types import FinishReason, NodeId, Reason, RequestId


class Ends:
    """Looks sessions up and ends them; frames that are of none are counted."""

    def __init__(self, node: NodeData) -> None:
        self._node = node
        self._counters = node.counters

    def find(self, request_id: RequestId, epoch: int) -> Session | None:
        session = self._node.sessions.get(request_id)
        return session if session is not None and session.epoch == epoch else None

    def match(self, request_id: RequestId, epoch: int) -> Session | None:
        """The session that a frame names; where there is none, the frame is counted."""
        session = self.find(request_id, epoch)
        if session is None:
            if epoch <= self._node.ended.get(request_id, 0) or request_id in self._node.sessions:
                self._counters.frames_late += 1
            else:
                self._counters.frames_foreign += 1
        return session

    def from_next(self, sender: NodeId, request_id: RequestId, epoch: int) -> Session | None:
        """The session whose next stage sent a frame about it; any other frame is counted."""
        session = self.match(request_id, epoch)
        if session is not None and session.next_id != sender:
            self._counters.frames_foreign += 1
            return None
        return session

    def close_forward(self, session: Session, reason: FinishReason, out: list[Effect]) -> None:
        if session.next_id is not None:
            close = Close(request_id=session.request_id, epoch=session.epoch, reason=reason)
            out.append(Send(session.next_id, close))

    def forget(self, session: Session, out: list[Effect], *, epoch: int | None = None) -> None:
        del self._node.sessions[session.request_id]
        self._node.kept.ended(session.request_id, session.epoch)
        self._node.remember_end(session.request_id, max(session.epoch, epoch or 0))
        out.append(ReleaseKv(session.request_id, session.epoch))

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
            self.close_forward(session, FinishReason.ERROR, out)
        self.forget(session, out)
