"""The gateway's end of the streams that nodes hold open to it."""

import asyncio
from typing import Final

from plait.types import NodeId
from plait.wire.v1 import data_pb2

OUTBOX_MAX: Final = 2_048
"""Messages waiting for one node. A node that lets more pile up is cut off."""


class NodeLink:
    """One attached stream. Messages go out in order; `close` ends the stream."""

    def __init__(self, node_id: NodeId, incarnation: int, *, outbox_max: int = OUTBOX_MAX) -> None:
        self.node_id: Final = node_id
        self.incarnation: Final = incarnation
        self.is_closed = False
        self.close_reason = ""
        self._outbox: asyncio.Queue[data_pb2.GatewayToNode | None] = asyncio.Queue(outbox_max)

    def send(self, message: data_pb2.GatewayToNode) -> bool:
        """Queue a message; False where the link is closed, or closes because it is full."""
        if self.is_closed:
            return False
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.close("the node does not read")
            return False
        return True

    def close(self, reason: str) -> None:
        """End the stream after what is being written; what still waits is dropped."""
        if self.is_closed:
            return
        self.is_closed = True
        self.close_reason = reason
        while not self._outbox.empty():
            self._outbox.get_nowait()
        self._outbox.put_nowait(None)

    async def next_message(self) -> data_pb2.GatewayToNode | None:
        """The next message to write; None when the link is closed."""
        return await self._outbox.get()
