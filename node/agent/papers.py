"""The node's certificate of this moment, renewed at two thirds of its life."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from grpc import aio

from node.agent.enrol import renew
from node.agent.identity import NodeCredentials
from plait import log
from plait.clock import Clock
from plait.crypto.certificates import TlsPair
from plait.errors import ServiceError, UserError

CHECK_S: Final = 60.0

OpenChannel = Callable[[], aio.Channel]
RenewCall = Callable[[NodeCredentials, Clock, OpenChannel], Awaitable[NodeCredentials]]

_log = log.get("papers")


class Papers:
    """Channels and handshakes ask `tls` each time; open streams keep what they began with."""

    def __init__(
        self,
        credentials: NodeCredentials,
        clock: Clock,
        open_channel: OpenChannel,
        *,
        renew_call: RenewCall = renew,
        check_s: float = CHECK_S,
    ) -> None:
        self.credentials = credentials
        self._clock = clock
        self._open_channel = open_channel
        self._renew_call = renew_call
        self._check_s = check_s

    def tls(self) -> TlsPair:
        """Key and certificate to use now."""
        return self.credentials.tls

    async def run(self) -> None:
        """Look once a minute, until cancelled; a renewal that fails is tried again then."""
        while True:
            if self._clock.unix_ms() >= self.credentials.renew_at_unix_ms:
                await self._renew()
            await asyncio.sleep(self._check_s)

    async def _renew(self) -> None:
        try:
            self.credentials = await self._renew_call(
                self.credentials, self._clock, self._open_channel
            )
        except (ServiceError, UserError) as error:
            _log.warning("renewal_failed", reason=error.code, message=error.message)
