"""The node's stream to the gateway. The queue outlives the connection, so a short cut is free."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from grpc import aio

from node.backoff import Backoff
from node.core import events as ev
from node.core.messages import GatewayMessage
from node.ports import Inbox
from node.transport import encode
from node.transport.decode import FrameReader
from node.transport.link import describe_rpc_error
from node.transport.pace import Pace
from node.transport.streams import GATEWAY_METHOD, DialledStream
from plait import log
from plait.errors import UnavailableError

QUEUE_MESSAGES_MAX: Final = 8_192
CONNECT_LIMIT_S: Final = 5.0

_log = log.get("gateway_link")


class GatewayLink:
    """`run` until cancelled; `send` at any time."""

    def __init__(
        self,
        *,
        open_channel: Callable[[], aio.Channel],
        reader: FrameReader,
        inbox: Inbox,
        incarnation: int,
        rng: random.Random,
        pace: Pace | None = None,
    ) -> None:
        self._open_channel = open_channel
        self._reader = reader
        self._inbox = inbox
        self._incarnation = incarnation
        self._backoff = Backoff(rng)
        self._pace = pace if pace is not None else Pace(now_s=lambda: 0.0)
        self._queue: deque[GatewayMessage] = deque()
        self._wake = asyncio.Event()
        self.is_up = False

    def send(self, message: GatewayMessage) -> bool:
        """Queue a message; False where the queue is full."""
        if len(self._queue) >= QUEUE_MESSAGES_MAX:
            return False
        self._queue.append(message)
        self._wake.set()
        return True

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            reason = await self._connect_once()
            if self.is_up:
                self.is_up = False
                _log.warning("gateway_link_down", reason=reason)
                self._inbox.post(ev.GatewayLinkDown())
            await asyncio.sleep(self._backoff.next_s())

    async def _connect_once(self) -> str:
        stream = DialledStream.open(self._open_channel(), GATEWAY_METHOD)
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await stream.connected()
                await stream.write(encode.attach_frame(self._incarnation))
            self.is_up = True
            self._backoff.reset()
            _log.info("gateway_link_up")
            self._inbox.post(ev.GatewayLinkUp())
            return await self._serve(stream)
        except TimeoutError:
            return "no answer"
        except aio.AioRpcError as error:
            return describe_rpc_error(error)
        finally:
            await stream.close()

    async def _serve(self, stream: DialledStream) -> str:
        reason = "the gateway closed the stream"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(stream))
                group.create_task(self._write(stream))
        except* UnavailableError:
            pass
        except* aio.AioRpcError as failed:
            reason = describe_rpc_error(failed.exceptions[0])
        except* (aio.UsageError, aio.InternalError, asyncio.InvalidStateError):
            reason = "the call had ended"
        return reason

    async def _read(self, stream: DialledStream) -> None:
        while (data := await stream.read()) is not None:
            self._pace.received(len(data))
            self._inbox.post(self._reader.gateway_event(data))
        raise UnavailableError("the gateway closed the stream")

    async def _write(self, stream: DialledStream) -> None:
        queue, wake = self._queue, self._wake
        while True:
            if not queue:
                wake.clear()
                await wake.wait()
                continue
            if (wait_s := self._pace.quick_wait_s()) > 0.0:
                await asyncio.sleep(wait_s)
            frames = encode.first_few(map(encode.gateway_frame, queue))
            data = encode.together(frames)
            await stream.write(data)
            self._pace.sent(len(data))
            for _ in frames:  # only now: what a lost stream did not take goes over the next one
                queue.popleft()
