"""A TCP proxy on loopback that counts what passes, so that a test sees a hop as its network does.

Bytes are what the sockets carry: TLS records, HTTP/2 frames and all, without the kernel's headers.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from types import TracebackType
from typing import Self

CHUNK_BYTES = 64 << 10
CONNECT_S = 5.0


@dataclass(slots=True)
class Way:
    """One direction of one connection. What is done to the bytes of a way belongs here."""

    num_bytes: int = 0

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry until the reader's end. Raises OSError where either side is lost."""
        while data := await reader.read(CHUNK_BYTES):
            self.num_bytes += len(data)
            writer.write(data)
            await writer.drain()


@dataclass(slots=True)
class Connection:
    """`up` from who dialled, `down` back to it."""

    up: Way
    down: Way


class Proxy:
    """In front of a port on loopback while its block lasts. Dial `address` instead."""

    def __init__(self, target_port: int) -> None:
        self.connections: list[Connection] = []
        self.address = ""
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def up_bytes(self) -> int:
        """From all who dialled, to the target."""
        return sum(connection.up.num_bytes for connection in self.connections)

    @property
    def down_bytes(self) -> int:
        """From the target, to all who dialled."""
        return sum(connection.down.num_bytes for connection in self.connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        onward: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                back, onward = await asyncio.open_connection("127.0.0.1", self._target_port)
            connection = Connection(Way(), Way())
            self.connections.append(connection)
            ways = connection.up.pump(reader, onward), connection.down.pump(back, writer)
            pumps = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # the target does not listen: who dialled sees its connection end
        finally:
            for end in (writer, onward):
                if end is not None:
                    end.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
