"""The HTTP connection itself: how many per address, how long a head may take, how long a client
may refuse to read. Below the application, so that nothing has to be parsed first."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.gateway.limits import DoorLimits
from plait.log import get

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

log = get("http")


def guarded_protocol(limits: DoorLimits) -> type[H11Protocol]:
    """A protocol class for one uvicorn server, with its own count of connections.

    h11 bounds the size of a head; this adds the number and the time.
    """
    connections: Counter[str] = Counter()

    class Guarded(GuardedProtocol):
        def __init__(
            self,
            config: "Config",
            server_state: "ServerState",
            app_state: dict[str, object],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(config, server_state, app_state, _loop)
            self.limits = limits
            self.num_by_address = connections

    return Guarded


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with limits; made by `guarded_protocol`."""

    limits: DoorLimits
    num_by_address: Counter[str]
    _address: str | None = None
    _is_refused = False
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it unheard."""
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "local"
        self.num_by_address[self._address] += 1
        if self.num_by_address[self._address] > self.limits.connections_per_address_max:
            self._is_refused = True
            log.warning("connection_refused", address=self._address)
            transport.abort()
            return
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.limits.head_s, self._on_slow_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._leave()
        if not self._is_refused:
            super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection goes over to another protocol, which will not tell us of its end."""
        self._leave()
        super().handle_websocket_upgrade(event)

    def data_received(self, data: bytes) -> None:
        """A head must be whole within `head_s`; trickling does not prolong it."""
        super().data_received(data)
        if self._is_answering or self._address is None:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_s, self._on_slow_head)

    def pause_writing(self) -> None:
        """The client does not keep up; it has `stall_s` to read again."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.stall_s, self._on_stall)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _leave(self) -> None:
        if self._address is not None:
            self.num_by_address[self._address] -= 1
            if not self.num_by_address[self._address]:
                del self.num_by_address[self._address]
            self._address = None
        self._stop_timers()

    def _on_slow_head(self) -> None:
        self._head_timer = None
        if not self._is_answering:
            log.info("slow_client", address=self._address)
            self.transport.abort()

    def _on_stall(self) -> None:
        self._stall_timer = None
        log.info("stalled_client", address=self._address)
        self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
