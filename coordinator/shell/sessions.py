"""Open control streams, one per node: a bounded way out each, and the newest incarnation wins."""

import asyncio
from collections import deque
from enum import StrEnum
from typing import Final

from coordinator.shell.reports import Attachment
from plait.clock import Clock
from plait.types import NodeId
from plait.wire.v1 import control_pb2

COMMANDS_MAX: Final = 256
TAKEOVERS_MAX: Final = 3
TAKEOVER_WINDOW_MS: Final = 600_000
REPORTS_PER_S: Final = 100
REPORTS_BURST: Final = 1_000


class NodeSession:
    """One control stream. Commands leave in order; the stream ends after `end()`'s last one."""

    def __init__(self, who: Attachment, *, commands_max: int = COMMANDS_MAX) -> None:
        self.who = who
        self._commands: asyncio.Queue[control_pb2.NodeCommand | None] = asyncio.Queue(commands_max)
        self.is_ending = False

    def send(self, command: control_pb2.NodeCommand) -> bool:
        """Queue a command; never blocks. False where the node reads too slowly: the stream ends."""
        if self.is_ending:
            return True
        if self._commands.full():
            self.end(None)
            return False
        self._commands.put_nowait(command)
        return True

    def end(self, last: control_pb2.NodeCommand | None) -> None:
        """Drop what waits, say `last`, end the stream."""
        if self.is_ending:
            return
        self.is_ending = True
        while not self._commands.empty():
            self._commands.get_nowait()
        if last is not None:
            self._commands.put_nowait(last)
        self._commands.put_nowait(None)

    async def next_command(self) -> control_pb2.NodeCommand | None:
        """The next command, or None when the stream should end. Waits as long as it takes."""
        return await self._commands.get()


class Pace:
    """A token bucket: how long a stream that reports too often is left unread."""

    def __init__(self, *, per_s: int = REPORTS_PER_S, burst: int = REPORTS_BURST) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._last_ms: int | None = None

    def delay_ms(self, now_ms: int) -> int:
        """Count one report at `now_ms`; how long to wait before reading the next, 0: not at all."""
        if self._last_ms is not None:
            earned = (now_ms - self._last_ms) * self._per_s / 1_000
            self._tokens = min(float(self._burst), self._tokens + earned)
        self._last_ms = now_ms
        self._tokens -= 1
        return 0 if self._tokens >= 0 else int(-self._tokens * 1_000 / self._per_s) + 1


class Admission(StrEnum):
    """What becomes of a stream that asks to speak for a node."""

    ADMITTED = "admitted"
    OLDER = "already_connected"
    SUSPENDED = "identity_in_use_twice"


class Sessions:
    """Which session speaks for which node.

    An identity whose live stream is taken over more than `takeovers_max` times within the window is
    copied, and both copies restart whenever the other one wins: it is suspended for a window.
    """

    def __init__(self, clock: Clock, *, takeovers_max: int = TAKEOVERS_MAX) -> None:
        self._clock = clock
        self._takeovers_max = takeovers_max
        self._by_node: dict[NodeId, NodeSession] = {}
        self._takeovers_ms: dict[NodeId, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._by_node)

    def current(self, node_id: NodeId) -> NodeSession | None:
        """The session that speaks for the node now."""
        return self._by_node.get(node_id)

    def admit(self, session: NodeSession) -> tuple[Admission, NodeSession | None]:
        """Let `session` speak for its node unless a newer incarnation does.

        Returns what became of it, and the session that has to end. The same incarnation again
        replaces its own older stream: the node lost it before we noticed.
        """
        node_id = session.who.node_id
        old = self._by_node.get(node_id)
        if old is not None and old.who.incarnation > session.who.incarnation:
            return Admission.OLDER, None
        is_takeover = old is not None and old.who.incarnation != session.who.incarnation
        if self._is_suspended(node_id, is_takeover=is_takeover):
            self._by_node.pop(node_id, None)
            return Admission.SUSPENDED, old
        self._by_node[node_id] = session
        return Admission.ADMITTED, old

    def _is_suspended(self, node_id: NodeId, *, is_takeover: bool) -> bool:
        now_ms = self._clock.monotonic_ms()
        taken = self._takeovers_ms.setdefault(node_id, deque(maxlen=self._takeovers_max + 1))
        while taken and now_ms - taken[0] > TAKEOVER_WINDOW_MS:
            taken.popleft()
        if is_takeover:
            taken.append(now_ms)
        if not taken:
            del self._takeovers_ms[node_id]
        return len(taken) > self._takeovers_max

    def remove(self, session: NodeSession) -> bool:
        """Forget a session; False where another one speaks for its node already."""
        if self._by_node.get(session.who.node_id) is not session:
            return False
        del self._by_node[session.who.node_id]
        return True

    def all(self) -> list[NodeSession]:
        """Every open session."""
        return list(self._by_node.values())
