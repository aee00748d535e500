"""Open control streams, one per node: a bounded way out each, and the newest incarnation wins."""

import asyncio
from typing import Final

from coordinator.shell.reports import Attachment
from plait.types import NodeId
from plait.wire.v1 import control_pb2

COMMANDS_MAX: Final = 256


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


class Sessions:
    """Which session speaks for which node."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, NodeSession] = {}

    def __len__(self) -> int:
        return len(self._by_node)

    def current(self, node_id: NodeId) -> NodeSession | None:
        """The session that speaks for the node now."""
        return self._by_node.get(node_id)

    def admit(self, session: NodeSession) -> tuple[bool, NodeSession | None]:
        """Let `session` speak for its node unless a newer incarnation does.

        Returns whether it was let in, and the session it replaced. The same incarnation again
        replaces its own older stream: the node lost it before we noticed.
        """
        old = self._by_node.get(session.who.node_id)
        if old is not None and old.who.incarnation > session.who.incarnation:
            return False, None
        self._by_node[session.who.node_id] = session
        return True, old

    def remove(self, session: NodeSession) -> bool:
        """Forget a session; False where another one speaks for its node already."""
        if self._by_node.get(session.who.node_id) is not session:
            return False
        del self._by_node[session.who.node_id]
        return True

    def all(self) -> list[NodeSession]:
        """Every open session."""
        return list(self._by_node.values())
