"""The network emulator: a TCP proxy on loopback that counts, delays, paces and breaks.

Bytes are what the sockets carry: TLS records, HTTP/2 frames and all, without the kernel's headers.
TCP's own slow start is not emulated: both halves of a connection end on this machine.

On the event loop of a test its delays are late by up to a millisecond, which is how finely epoll
waits; `tests.kit.proxy_thread` has a loop that waits more finely.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, cast

from tests.kit.proxy_pacing import Conditions, Pacer

HOST: Final = "127.0.0.1"
CONNECT_S: Final = 5.0
BACKLOG: Final = 128
EARLY_S: Final = 50e-6
"""Bytes may come out this much too early, which saves a wait."""

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_END: Final = b""


class Way:
    """One direction of one connection: bytes in order, each with the time it comes out."""

    def __init__(self, pacer: Pacer, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self.num_bytes = 0
        self.has_lost = False
        self.has_ended = False
        self._pacer = pacer
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._last_due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._source: asyncio.Transport | None = None
        self._sink: asyncio.Transport | None = None
        self._is_sink_full = False
        self._loop = asyncio.get_running_loop()

    def join(
        self, *, source: asyncio.Transport | None = None, sink: asyncio.Transport | None = None
    ) -> None:
        """Say where bytes come from, or where they go to."""
        self._source = source or self._source
        self._sink = sink or self._sink
        self._deliver()

    def take(self, data: bytes) -> None:
        """Bytes from the source; `_END` is its end."""
        self.num_bytes += len(data)
        pacer = self._pacer
        if pacer.conditions.is_cut:
            self.has_lost = True
            return
        now_s = self._loop.time()
        for segment in pacer.segments(data) if data else (_END,):
            due_s = max(self._last_due_s, pacer.due_s(now_s, len(segment)))
            self._last_due_s = due_s
            self._queue.append((due_s, segment))
            self._queued_bytes += len(segment)
        self._deliver()
        if self._queued_bytes > pacer.bytes_max and self._source is not None:
            self._source.pause_reading()

    def sink_is_full(self, *, is_full: bool) -> None:
        """Whether the far end takes more."""
        self._is_sink_full = is_full
        self._deliver()

    def stop(self) -> None:
        """Forget what is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()

    def _deliver(self) -> None:
        """Hand out what is due, and wait for what is next."""
        sink, queue = self._sink, self._queue
        if sink is None or sink.is_closing() or self._is_sink_full:
            return
        now_s = self._loop.time()
        while queue and queue[0][0] <= now_s + EARLY_S and not self._is_sink_full:
            _, segment = queue.popleft()
            self._queued_bytes -= len(segment)
            self._hand_out(sink, segment)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if queue and not self._is_sink_full:
            self._timer = self._loop.call_at(queue[0][0], self._deliver)
        if self._queued_bytes <= self._pacer.bytes_max and self._source is not None:
            with contextlib.suppress(RuntimeError):  # a source that has closed
                self._source.resume_reading()

    def _hand_out(self, sink: asyncio.Transport, segment: bytes) -> None:
        if self._pacer.conditions.is_cut:
            self.has_lost = True
        elif segment:
            sink.write(segment)
        else:
            self.has_ended = True
            with contextlib.suppress(OSError):  # the far end is gone already
                sink.write_eof()
            self._on_end()


class Connection:
    """`up` from who dialled, `down` back to it."""

    def __init__(self, up: Pacer, down: Pacer) -> None:
        self.up = Way(up, self._way_ended)
        self.down = Way(down, self._way_ended)
        self.ends: list[asyncio.Transport] = []

    @property
    def is_open(self) -> bool:
        return any(not end.is_closing() for end in self.ends)

    def _way_ended(self) -> None:
        if self.up.has_ended and self.down.has_ended:
            for end in self.ends:
                end.close()

    def reset(self) -> None:
        """End it for both at once: each gets an RST."""
        for end in self.ends:
            bare = end.get_extra_info("socket")
            if bare is not None and not end.is_closing():
                with contextlib.suppress(OSError):
                    bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            end.abort()
        self.up.stop()
        self.down.stop()


class _End(asyncio.Protocol):
    """One socket of a connection: what it says goes out by `out`, `back` brings what it hears."""

    def __init__(self, connection: Connection, out: Way, back: Way) -> None:
        self._connection = connection
        self._out = out
        self._back = back

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        end = cast("asyncio.Transport", transport)
        self._connection.ends.append(end)
        self._out.join(source=end)
        self._back.join(sink=end)

    def data_received(self, data: bytes) -> None:
        self._out.take(data)

    def eof_received(self) -> bool:
        self._out.take(_END)
        return True  # the other direction may go on

    def pause_writing(self) -> None:
        self._back.sink_is_full(is_full=True)

    def resume_writing(self) -> None:
        self._back.sink_is_full(is_full=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._out.has_lost and not self._back.has_lost:
            self._connection.reset()


class Proxy:
    """In front of a port on loopback while its block lasts. Dial `address` instead.

    Everything may be changed while connections stand. Use it on its event loop's thread only.
    """

    def __init__(
        self,
        target_port: int,
        *,
        up: Conditions | None = None,
        down: Conditions | None = None,
        seed: int = 0,
    ) -> None:
        self.connections: list[Connection] = []
        self.address = ""
        self.up = Pacer(up or Conditions(), random.Random(f"{seed} up"))
        self.down = Pacer(down or Conditions(), random.Random(f"{seed} down"))
        self._target_port = target_port
        self._dials: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def up_bytes(self) -> int:
        """From all who dialled, to the target."""
        return sum(connection.up.num_bytes for connection in self.connections)

    @property
    def down_bytes(self) -> int:
        """From the target, to all who dialled."""
        return sum(connection.down.num_bytes for connection in self.connections)

    def change(self, **changes: float | bool | None) -> None:
        """Both directions at once; see `Conditions`."""
        self.up.change(**changes)
        self.down.change(**changes)

    def cut(self) -> None:
        """Reset every connection. New ones are taken."""
        for connection in self.connections:
            connection.reset()

    def half_open(self) -> None:
        """From now on nothing passes, and nobody is told: sockets stay open and take bytes."""
        self.change(is_cut=True)

    def heal(self) -> None:
        """Let bytes pass again. Connections that have lost some are reset: TCP would not go on
        with a gap."""
        self.change(is_cut=False)
        for connection in self.connections:
            if connection.up.has_lost or connection.down.has_lost:
                connection.reset()

    def refuse(self) -> None:
        """Take no new connections: who dials is refused. Those that stand are left alone."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def accept(self) -> None:
        """Take connections, again where they were refused."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                self._accepted, sock=_bound(self._port), backlog=BACKLOG
            )

    def _accepted(self) -> asyncio.Protocol:
        connection = Connection(self.up, self.down)
        self.connections.append(connection)
        task = asyncio.get_running_loop().create_task(self._dial(connection))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)
        return _End(connection, connection.up, connection.down)

    async def _dial(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(
                    lambda: _End(connection, connection.down, connection.up),
                    HOST,
                    self._target_port,
                )
        except OSError:  # the target does not listen: who dialled sees its connection end
            connection.reset()

    async def __aenter__(self) -> Self:
        self._placeholder = _bound(0)  # keeps the port while connections are refused
        self._port = int(self._placeholder.getsockname()[1])
        self.address = f"{HOST}:{self._port}"
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self._placeholder.close()
        dials = tuple(self._dials)
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        self.cut()


def _bound(port: int) -> socket.socket:
    bare = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bare.bind((HOST, port))
    bare.settimeout(0)
    return bare
