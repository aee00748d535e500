"""The last word of every node's topics, bounded and checked."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from coordinator.ports import NodeTelemetry, TelemetryHealth
from plait.clock import Clock
from plait.errors import FrameError
from plait.types import NodeId
from plait.wire.telemetry import (
    Presence,
    PresenceState,
    Telemetry,
    TopicKind,
    decode_presence,
    decode_telemetry,
    parse_topic,
)

NODES_MAX: Final = 4_096


class _Entry:
    __slots__ = ("heard_ms", "presence", "presence_ms", "telemetry")

    def __init__(self) -> None:
        self.presence: Presence | None = None
        self.presence_ms = 0
        self.telemetry: Telemetry | None = None
        self.heard_ms = 0


class TelemetryView:
    """Takes messages in any order, keeps the newest per node, counts what it refuses.

    A node that speaks is online, whatever an older connection's late will says.
    """

    def __init__(self, *, prefix: str, clock: Clock, nodes_max: int = NODES_MAX) -> None:
        self._prefix = prefix
        self._clock = clock
        self._nodes_max = nodes_max
        self._entries: dict[NodeId, _Entry] = {}
        self._dropped: Counter[str] = Counter()
        self._messages_total = 0
        self.is_connected = False

    def take(self, topic: str, payload: object) -> None:
        """Digest one message; whatever does not fit is dropped and counted."""
        self._messages_total += 1
        try:
            if not isinstance(payload, bytes | bytearray):
                raise FrameError("an empty payload", reason="payload_invalid")
            node_id, kind = parse_topic(self._prefix, topic)
            match kind:
                case TopicKind.PRESENCE:
                    presence = decode_presence(bytes(payload))
                    self._take_presence(self._entry(node_id), presence)
                case TopicKind.TELEMETRY:
                    telemetry = decode_telemetry(bytes(payload))
                    self._take_telemetry(self._entry(node_id), telemetry)
        except FrameError as error:
            self._dropped[error.code] += 1

    def nodes(self) -> Sequence[NodeTelemetry]:
        """In order of node id."""
        now_ms = self._clock.monotonic_ms()
        return [
            NodeTelemetry(
                node_id=node_id,
                presence=None if entry.presence is None else entry.presence.state,
                presence_age_ms=None if entry.presence is None else now_ms - entry.presence_ms,
                telemetry=entry.telemetry,
                telemetry_age_ms=None if entry.telemetry is None else now_ms - entry.heard_ms,
            )
            for node_id, entry in sorted(self._entries.items())
        ]

    def health(self) -> TelemetryHealth:
        """The link's own counters."""
        return TelemetryHealth(
            is_connected=self.is_connected,
            messages_total=self._messages_total,
            dropped=tuple(sorted(self._dropped.items())),
        )

    def _entry(self, node_id: NodeId) -> _Entry:
        entry = self._entries.get(node_id)
        if entry is None:
            if len(self._entries) >= self._nodes_max:
                raise FrameError("too many nodes", reason="nodes_too_many")
            entry = self._entries[node_id] = _Entry()
        return entry

    def _take_presence(self, entry: _Entry, presence: Presence) -> None:
        if entry.presence is not None and _age(presence) < _age(entry.presence):
            raise FrameError("a presence of an older connection", reason="presence_late")
        entry.presence = presence
        entry.presence_ms = self._clock.monotonic_ms()

    def _take_telemetry(self, entry: _Entry, telemetry: Telemetry) -> None:
        last = entry.telemetry
        if last is not None and _order(telemetry) <= _order(last):
            raise FrameError("a reading out of order", reason="telemetry_late")
        entry.telemetry = telemetry
        entry.heard_ms = self._clock.monotonic_ms()
        if entry.presence is None or _age(entry.presence) < _age(telemetry):
            entry.presence = Presence(
                state=PresenceState.ONLINE,
                incarnation=telemetry.incarnation,
                connection=telemetry.connection,
            )
            entry.presence_ms = entry.heard_ms


def _age(speaker: Presence | Telemetry) -> tuple[int, int]:
    return speaker.incarnation, speaker.connection


def _order(telemetry: Telemetry) -> tuple[int, int]:
    return telemetry.incarnation, telemetry.sequence
