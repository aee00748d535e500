"""Telemetry to the broker that the latest welcome names; nothing that serves waits for it."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from node.agent.identity import NodeCredentials
from node.agent.telemetry import TelemetryPublisher
from node.agent.telemetry_address import broker_address, telemetry_of
from node.ports import TelemetrySource
from plait import log
from plait.clock import Clock
from plait.errors import ConfigError
from plait.wire.v1 import control_pb2

_log: Final = log.get("node")


class TelemetryFollower:
    """`follow` each welcome; `run` until cancelled."""

    def __init__(
        self,
        credentials: Callable[[], NodeCredentials],
        source: TelemetrySource,
        *,
        incarnation: int,
        clock: Clock,
        rng: random.Random,
        is_on: bool,
    ) -> None:
        self._credentials = credentials
        self._source = source
        self._incarnation = incarnation
        self._clock = clock
        self._rng = rng
        self._is_on = is_on
        self._welcomes: asyncio.Queue[control_pb2.Welcome] = asyncio.Queue(maxsize=1)

    def follow(self, welcome: control_pb2.Welcome) -> None:
        """From now on this one."""
        if self._welcomes.full():
            self._welcomes.get_nowait()
        self._welcomes.put_nowait(welcome)

    async def run(self) -> None:
        welcome = await self._welcomes.get()
        while True:
            publisher = self._publisher(welcome)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(publisher.run()) if publisher is not None else None
                previous = telemetry_of(welcome)
                while telemetry_of(welcome := await self._welcomes.get()) == previous:
                    pass
                if task is not None:
                    task.cancel()

    def _publisher(self, welcome: control_pb2.Welcome) -> TelemetryPublisher | None:
        if not (self._is_on and welcome.telemetry_url):
            return None
        credentials = self._credentials()
        try:
            address = broker_address(welcome, credentials)
        except ConfigError as error:
            _log.warning("telemetry_off", message=error.message)
            return None
        return TelemetryPublisher(
            address=address,
            prefix=welcome.telemetry_prefix,
            node_id=credentials.node_id,
            incarnation=self._incarnation,
            source=self._source,
            clock=self._clock,
            rng=self._rng,
        )
