"""What nodes say over MQTT: topics, and JSON that is checked field by field.

Topics, below a prefix that the welcome names (`plait/v1/<network id>`):

    <prefix>/node/<node id>/presence    retained; also the last will
    <prefix>/node/<node id>/telemetry   a reading every second or so

Nothing here is trusted: whatever does not fit raises FrameError, to be dropped and counted.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from plait.errors import FrameError
from plait.types import LayerSpan, ModelId, NodeId

VERSION: Final = 1
PAYLOAD_BYTES_MAX: Final = 16_384
NEIGHBOURS_MAX: Final = 256
COUNT_MAX: Final = 2**63 - 1
WEIGHTS: Final = (
    "weights_hub_bytes_total",
    "weights_neighbour_bytes_total",
    "weights_served_bytes_total",
    "weights_rejected_total",
    "weights_refused_total",
)
"""Counters of weights over the network; older nodes do not say them."""
_NODE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WORD: Final = re.compile(r"[ -~]{0,128}")


class TopicKind(StrEnum):
    """The last word of a node's topic."""

    PRESENCE = "presence"
    TELEMETRY = "telemetry"


class PresenceState(StrEnum):
    """`lost` is the last will: the connection ended without a word."""

    ONLINE = "online"
    LEFT = "left"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Who speaks, and which of its connections: a late will of an old one is then recognised.

    `incarnation` is the process, `connection` counts its connections to the broker from 1.
    """

    state: PresenceState
    incarnation: int
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryReading:
    """A node's moving figures at one moment. Milliseconds, tokens, bytes; totals since the start.

    `state` is the node's own word for what it does; `model_id` and `span` are None with nothing
    loaded.
    """

    state: str
    model_id: ModelId | None = None
    span: LayerSpan | None = None
    stage_ms: float = 0.0
    kv_tokens_max: int = 0
    kv_tokens_reserved: int = 0
    num_requests: int = 0
    queue_tokens: int = 0
    tokens_total: int = 0
    steps_total: int = 0
    sent_bytes_total: int = 0
    received_bytes_total: int = 0
    frames_dropped_total: int = 0
    weights_hub_bytes_total: int = 0
    weights_neighbour_bytes_total: int = 0
    weights_served_bytes_total: int = 0
    weights_rejected_total: int = 0
    weights_refused_total: int = 0
    neighbour_rtt_ms: tuple[tuple[NodeId, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """A reading as it travels. `sequence` rises by one per reading of an incarnation."""

    incarnation: int
    connection: int
    sequence: int
    sent_unix_ms: int
    readings_dropped_total: int
    reading: TelemetryReading


def default_prefix(network_id: str) -> str:
    """Where a network's topics begin."""
    return f"plait/v{VERSION}/{network_id}"


def node_topic(prefix: str, node_id: NodeId, kind: TopicKind) -> str:
    """A node's own topic; it may publish to no other."""
    return f"{prefix}/node/{node_id}/{kind}"


def all_nodes_filter(prefix: str) -> str:
    """The subscription that sees every node."""
    return f"{prefix}/node/+/+"


def parse_topic(prefix: str, topic: str) -> tuple[NodeId, TopicKind]:
    """The node and kind that a topic names. Raises FrameError for any other topic."""
    head = f"{prefix}/node/"
    node_id, _, kind = topic.removeprefix(head).partition("/")
    if not topic.startswith(head) or not _NODE_ID.fullmatch(node_id):
        raise FrameError("not a node's topic", reason="topic_foreign")
    try:
        return NodeId(node_id), TopicKind(kind)
    except ValueError:
        raise FrameError("a topic of unknown kind", reason="topic_foreign") from None


def encode_presence(presence: Presence) -> bytes:
    """Compact JSON."""
    return _dump(
        {
            "v": VERSION,
            "state": presence.state.value,
            "incarnation": presence.incarnation,
            "connection": presence.connection,
        }
    )


def decode_presence(payload: bytes) -> Presence:
    """Raises FrameError for anything that is not a presence of this version."""
    fields = _load(payload)
    try:
        state = PresenceState(_word(fields, "state"))
    except ValueError:
        raise FrameError("an unknown presence state", reason="payload_invalid") from None
    return Presence(
        state=state,
        incarnation=_count(fields, "incarnation"),
        connection=_count(fields, "connection"),
    )


def encode_telemetry(telemetry: Telemetry) -> bytes:
    """Compact JSON; the dataclass' names are the keys, nothing nested but span and neighbours."""
    reading = telemetry.reading
    span = reading.span
    return _dump(
        {
            "v": VERSION,
            "incarnation": telemetry.incarnation,
            "connection": telemetry.connection,
            "sequence": telemetry.sequence,
            "sent_unix_ms": telemetry.sent_unix_ms,
            "readings_dropped_total": telemetry.readings_dropped_total,
            "state": reading.state,
            "model_id": reading.model_id,
            "span": None if span is None else [span.start, span.end],
            "stage_ms": round(reading.stage_ms, 3),
            "kv_tokens_max": reading.kv_tokens_max,
            "kv_tokens_reserved": reading.kv_tokens_reserved,
            "num_requests": reading.num_requests,
            "queue_tokens": reading.queue_tokens,
            "tokens_total": reading.tokens_total,
            "steps_total": reading.steps_total,
            "sent_bytes_total": reading.sent_bytes_total,
            "received_bytes_total": reading.received_bytes_total,
            "frames_dropped_total": reading.frames_dropped_total,
            **{name: getattr(reading, name) for name in WEIGHTS},
            "neighbour_rtt_ms": {
                node_id: round(rtt_ms, 3)
                for node_id, rtt_ms in reading.neighbour_rtt_ms[:NEIGHBOURS_MAX]
            },
        }
    )


def decode_telemetry(payload: bytes) -> Telemetry:
    """Raises FrameError for a payload that is too long, no JSON, or has a field out of range."""
    fields = _load(payload)
    model_id = None if fields.get("model_id") is None else ModelId(_word(fields, "model_id"))
    return Telemetry(
        incarnation=_count(fields, "incarnation"),
        connection=_count(fields, "connection"),
        sequence=_count(fields, "sequence"),
        sent_unix_ms=_count(fields, "sent_unix_ms"),
        readings_dropped_total=_count(fields, "readings_dropped_total"),
        reading=TelemetryReading(
            state=_word(fields, "state"),
            model_id=model_id,
            span=_span(fields.get("span")),
            stage_ms=_duration(fields.get("stage_ms")),
            kv_tokens_max=_count(fields, "kv_tokens_max"),
            kv_tokens_reserved=_count(fields, "kv_tokens_reserved"),
            num_requests=_count(fields, "num_requests"),
            queue_tokens=_count(fields, "queue_tokens"),
            tokens_total=_count(fields, "tokens_total"),
            steps_total=_count(fields, "steps_total"),
            sent_bytes_total=_count(fields, "sent_bytes_total"),
            received_bytes_total=_count(fields, "received_bytes_total"),
            frames_dropped_total=_count(fields, "frames_dropped_total"),
            **{name: _count(fields, name) for name in WEIGHTS if name in fields},
            neighbour_rtt_ms=_neighbours(fields.get("neighbour_rtt_ms")),
        ),
    )


def _dump(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()


def _load(payload: bytes) -> Mapping[str, object]:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise FrameError(f"a payload of {len(payload)} bytes", reason="payload_too_long")
    try:
        fields: object = json.loads(payload)
    except (ValueError, RecursionError):
        raise FrameError("a payload that is no JSON", reason="payload_invalid") from None
    if not isinstance(fields, dict) or fields.get("v") != VERSION:
        raise FrameError("a payload of another version", reason="payload_version")
    return fields


def _invalid(name: str) -> FrameError:
    return FrameError(f"field {name} is missing or out of range", reason="payload_invalid")


def _count(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise _invalid(name)
    return value


def _word(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise _invalid(name)
    return value


def _duration(value: object) -> float:
    if type(value) not in (int, float) or not isinstance(value, int | float):
        raise _invalid("a duration")
    try:
        duration_ms = float(value)
    except OverflowError:
        raise _invalid("a duration") from None
    if not math.isfinite(duration_ms) or not 0 <= duration_ms <= 86_400_000:
        raise _invalid("a duration")
    return duration_ms


def _span(value: object) -> LayerSpan | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise _invalid("span")
    start, end = value
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= 65_536:
        raise _invalid("span")
    return LayerSpan(start, end)


def _neighbours(value: object) -> tuple[tuple[NodeId, float], ...]:
    if not isinstance(value, dict) or len(value) > NEIGHBOURS_MAX:
        raise _invalid("neighbour_rtt_ms")
    if not all(_NODE_ID.fullmatch(node_id) for node_id in value):
        raise _invalid("neighbour_rtt_ms")
    return tuple((NodeId(node_id), _duration(rtt_ms)) for node_id, rtt_ms in value.items())
