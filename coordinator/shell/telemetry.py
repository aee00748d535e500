"""Listens to every node's topics, for dashboard and status. Nothing that serves depends on it."""

import asyncio
import random
import secrets
from typing import Final

from coordinator.shell.telemetry_view import TelemetryView
from plait import log
from plait.wire.mqtt import BACKOFF_MAX_S, BrokerAddress, open_client
from plait.wire.telemetry import all_nodes_filter

INCOMING_MAX: Final = 4_096
BACKOFF_FIRST_S: Final = 0.25
FAREWELL_LIMIT_S: Final = 1.0

_log = log.get("telemetry")


class TelemetrySubscriber:
    """Keeps a subscription to all nodes' topics alive and feeds a view. `run()` until cancelled."""

    def __init__(
        self,
        *,
        address: BrokerAddress,
        prefix: str,
        view: TelemetryView,
        rng: random.Random,
    ) -> None:
        self._address = address
        self._prefix = prefix
        self._view = view
        self._rng = rng
        self._identifier = f"coordinator-{secrets.token_hex(16)}"
        self._is_leaving = False

    async def run(self) -> None:
        """Subscribe, and again after every failure."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            messages_before = self._view.health().messages_total
            try:
                await self._listen()
            except Exception as error:  # root: no broker, however odd, may end the coordinator
                _log.warning("telemetry_broker_away", error=repr(error))
            if self._is_leaving:
                # The client's own disconnect may have failed and hidden the cancellation.
                raise asyncio.CancelledError
            if self._view.health().messages_total > messages_before:
                backoff_s = BACKOFF_FIRST_S
            await asyncio.sleep(self._rng.uniform(backoff_s / 2, backoff_s))
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _listen(self) -> None:
        client = open_client(self._address, identifier=self._identifier, incoming_max=INCOMING_MAX)
        async with client:
            try:
                await client.subscribe(all_nodes_filter(self._prefix), qos=1)
                self._view.is_connected = True
                _log.info("telemetry_listening", broker=f"{self._address.host}")
                async for message in client.messages:
                    self._view.take(message.topic.value, message.payload)
            except asyncio.CancelledError:
                self._is_leaving = True
                client.timeout = FAREWELL_LIMIT_S
                raise
            finally:
                self._view.is_connected = False
