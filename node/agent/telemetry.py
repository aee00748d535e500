"""Publishes presence and readings over MQTT. Nothing on the serving path waits for it.

Readings are taken once an interval into a bounded buffer (drop the oldest), and a link of its own
empties the buffer whenever a broker is there. A broker that is gone, frozen or hostile costs
readings, never a request.
"""

import asyncio
import contextlib
import random
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Final

import aiomqtt

from node.ports import TelemetrySource
from plait import log
from plait.clock import Clock
from plait.types import NodeId
from plait.wire.mqtt import BACKOFF_MAX_S, CALL_LIMIT_S, BrokerAddress, open_client
from plait.wire.telemetry import (
    Presence,
    PresenceState,
    Telemetry,
    TelemetryReading,
    TopicKind,
    encode_presence,
    encode_telemetry,
    node_topic,
)

BUFFER_MAX: Final = 1_000
BACKOFF_FIRST_S: Final = 0.5
FAREWELL_LIMIT_S: Final = 1.0

_log = log.get("telemetry")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    sequence: int
    sent_unix_ms: int
    reading: TelemetryReading


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStats:
    """`num_kept` readings wait; totals since the start."""

    is_connected: bool
    num_kept: int
    published_total: int
    dropped_total: int
    connections_total: int


class TelemetryPublisher:
    """One node's voice on the broker. `run()` until cancelled; then it says `left`."""

    def __init__(
        self,
        *,
        address: BrokerAddress,
        prefix: str,
        node_id: NodeId,
        incarnation: int,
        source: TelemetrySource,
        clock: Clock,
        rng: random.Random,
        interval_s: float = 1.0,
        buffer_max: int = BUFFER_MAX,
    ) -> None:
        self._address = address
        self._presence_topic = node_topic(prefix, node_id, TopicKind.PRESENCE)
        self._telemetry_topic = node_topic(prefix, node_id, TopicKind.TELEMETRY)
        # Hard to guess: whoever connects with the same identifier displaces this client.
        self._identifier = f"{node_id}-{secrets.token_hex(8)}"
        self._incarnation = incarnation
        self._source = source
        self._clock = clock
        self._rng = rng
        self._interval_s = interval_s
        self._buffer_max = buffer_max
        self._kept: deque[_Kept] = deque()
        self._is_filled = asyncio.Event()
        self._sequence = 0
        self._connection = 0
        self._published_total = 0
        self._dropped_total = 0
        self._is_connected = False
        self._is_leaving = False

    def stats(self) -> PublisherStats:
        """Counters for logs and tests."""
        return PublisherStats(
            is_connected=self._is_connected,
            num_kept=len(self._kept),
            published_total=self._published_total,
            dropped_total=self._dropped_total,
            connections_total=self._connection,
        )

    @property
    def next_sequence(self) -> int | None:
        """Of the oldest reading that waits; None with nothing to say."""
        return self._kept[0].sequence if self._kept else None

    def sample(self) -> None:
        """Take a reading now, as the interval does; never blocks."""
        if len(self._kept) >= self._buffer_max:
            self._kept.popleft()
            self._dropped_total += 1
        self._sequence += 1
        self._kept.append(
            _Kept(
                sequence=self._sequence,
                sent_unix_ms=self._clock.unix_ms(),
                reading=self._source.reading(),
            )
        )
        self._is_filled.set()

    async def run(self) -> None:
        """Sample and publish until cancelled; no failure of the broker or the source ends it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sample_forever())
            group.create_task(self._link_forever())

    async def _sample_forever(self) -> None:
        while True:
            try:
                self.sample()
            except Exception as error:  # root: a source that fails costs a reading, no more
                _log.warning("telemetry_source_failed", error=repr(error))
            await asyncio.sleep(self._interval_s)

    async def _link_forever(self) -> None:
        """Connect, publish, and after a failure wait a jittered, growing and bounded while."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            published_before = self._published_total
            try:
                await self._serve_link()
            except Exception as error:  # root: no broker, however odd, may end the node
                _log.info("telemetry_link_down", error=repr(error), kept=len(self._kept))
            if self._is_leaving:
                # The client's own farewell may have failed and hidden the cancellation.
                raise asyncio.CancelledError
            if self._published_total > published_before:
                backoff_s = BACKOFF_FIRST_S
            await asyncio.sleep(self._rng.uniform(backoff_s / 2, backoff_s))
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _serve_link(self) -> None:
        """One connection, from connect to failure or farewell."""
        self._connection += 1
        client = open_client(
            self._address,
            identifier=self._identifier,
            will=aiomqtt.Will(
                self._presence_topic, self._presence(PresenceState.LOST), qos=1, retain=True
            ),
        )
        async with client:
            try:
                await self._say(client, PresenceState.ONLINE)
                self._is_connected = True
                _log.info("telemetry_link_up", connection=self._connection)
                await self._publish_kept(client)
            except asyncio.CancelledError:
                self._is_leaving = True
                client.timeout = FAREWELL_LIMIT_S
                with contextlib.suppress(aiomqtt.MqttError, TimeoutError):
                    async with asyncio.timeout(FAREWELL_LIMIT_S):
                        await self._say(client, PresenceState.LEFT)
                raise
            finally:
                self._is_connected = False

    async def _publish_kept(self, client: aiomqtt.Client) -> None:
        """Publish in order. A reading leaves the buffer for good when the broker has taken it."""
        while True:
            if not self._kept:
                self._is_filled.clear()
                await self._is_filled.wait()
            kept = self._kept.popleft()
            try:
                payload = self._encode(kept)
            except (ValueError, TypeError) as error:
                self._dropped_total += 1
                _log.warning("telemetry_reading_refused", error=str(error))
                continue
            is_taken = False
            try:
                await client.publish(self._telemetry_topic, payload, qos=1)
                is_taken = True
                self._published_total += 1
            finally:
                if not is_taken:
                    self._give_back(kept)

    def _give_back(self, kept: _Kept) -> None:
        if len(self._kept) < self._buffer_max:
            self._kept.appendleft(kept)
        else:
            self._dropped_total += 1

    async def _say(self, client: aiomqtt.Client, state: PresenceState) -> None:
        await client.publish(
            self._presence_topic, self._presence(state), qos=1, retain=True, timeout=CALL_LIMIT_S
        )

    def _presence(self, state: PresenceState) -> bytes:
        return encode_presence(
            Presence(state=state, incarnation=self._incarnation, connection=self._connection)
        )

    def _encode(self, kept: _Kept) -> bytes:
        return encode_telemetry(
            Telemetry(
                incarnation=self._incarnation,
                connection=self._connection,
                sequence=kept.sequence,
                sent_unix_ms=kept.sent_unix_ms,
                readings_dropped_total=self._dropped_total,
                reading=kept.reading,
            )
        )
