"""The coordinator's listening sockets: two gRPC servers and one HTTP server, with honest errors."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import grpc
import uvicorn
from grpc import aio
from starlette.types import ASGIApp

from coordinator.shell.plain_errors import PlainErrors
from plait.errors import ConfigError
from plait.log import get
from plait.wire.channel import FRAME_BYTES_MAX, server_options
from plait.wire.listening import bind_error, check_bindable

STOP_S: Final = 3.0
START_S: Final = 20.0
TICK_S: Final = 1.0
log = get("servers")


class GrpcDoor:
    """A bound gRPC port. `port` is known before any service is, for those who must name it.

    At most `calls_max` calls run at once, more are refused with RESOURCE_EXHAUSTED. Raises
    ConfigError for a port that cannot be had.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        flag: str,
        credentials: grpc.ServerCredentials,
        calls_max: int,
        message_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        check_bindable(host, port, flag=flag)
        self._server = aio.server(
            interceptors=(PlainErrors(),),
            options=server_options(message_bytes_max),
            maximum_concurrent_rpcs=calls_max,
        )
        literal = f"[{host}]" if ":" in host else host
        try:
            self.port: Final[int] = self._server.add_secure_port(f"{literal}:{port}", credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"port {port} on {host} cannot be opened ({error}): choose another with {flag}"
            ) from error

    @contextlib.asynccontextmanager
    async def serve(self, *add_services: Callable[[aio.Server], None]) -> AsyncIterator[None]:
        """Answer calls until the block ends, then let running ones finish for STOP_S."""
        for add in add_services:
            add(self._server)
        await self._server.start()
        try:
            yield
        finally:
            await self._server.stop(STOP_S)


def bind(host: str, port: int, *, flag: str) -> socket.socket:
    """A bound TCP socket. Raises ConfigError as `check_bindable` does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only for sockets that name TCP; else 40 ms a token.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, UnicodeError) as error:
        bound.close()
        raise bind_error(host, port, flag, error) from error
    return bound


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers (the coordinator's main owns them), and with news."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up, self._is_over = asyncio.Event(), asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._is_over.set()

    async def main_loop(self) -> None:
        """Woken once a second for the date in answers, not ten times, and at once by `end`."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's gives those who are connected time to leave; where nobody is, none is spent."""
        for server in self.servers:
            server.close()
        await asyncio.sleep(0)  # connections that were accepted or have ended are known then
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@contextlib.asynccontextmanager
async def http_server(
    app: ASGIApp, bound: socket.socket, *, protocol: type[asyncio.Protocol] | None = None
) -> AsyncIterator[None]:
    """`app` served on a bound socket until the block ends. Raises ConfigError: it did not start.

    Args:
        protocol: of the connections; None: uvicorn's own.
    """
    config = uvicorn.Config(
        app,
        http=protocol if protocol is not None else "auto",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(STOP_S),
        limit_concurrency=1_024,
        h11_max_incomplete_event_size=64 << 10,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]), name="http")
    up = asyncio.create_task(server.is_up.wait())
    try:
        await asyncio.wait((task, up), timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not server.is_up.is_set() or server.should_exit:
            raise ConfigError("the HTTP door did not start; the log above says why")
        yield
    finally:
        up.cancel()
        server.end()
        await asyncio.wait((task,), timeout=STOP_S + 2)
        task.cancel()
        bound.close()
