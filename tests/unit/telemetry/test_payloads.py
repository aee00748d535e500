"""Topics and payloads: what travels comes back, and what a stranger sends is refused."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import FrameError
from plait.types import LayerSpan, ModelId, NodeId
from plait.wire.telemetry import (
    PAYLOAD_BYTES_MAX,
    Presence,
    PresenceState,
    Telemetry,
    TelemetryReading,
    TopicKind,
    decode_presence,
    decode_telemetry,
    default_prefix,
    encode_presence,
    encode_telemetry,
    node_topic,
    parse_topic,
)

PREFIX = default_prefix("0123456789abcdef")
TELEMETRY = Telemetry(
    incarnation=1_700_000_000_000,
    connection=2,
    sequence=41,
    sent_unix_ms=1_700_000_100_000,
    readings_dropped_total=3,
    reading=TelemetryReading(
        state="serving",
        model_id=ModelId("smollm2-135m-instruct"),
        span=LayerSpan(10, 20),
        stage_ms=4.75,
        kv_tokens_max=8_192,
        kv_tokens_reserved=700,
        num_requests=2,
        queue_tokens=5,
        tokens_total=1_000,
        steps_total=900,
        sent_bytes_total=5_000_000,
        received_bytes_total=4_000_000,
        frames_dropped_total=1,
        weights_hub_bytes_total=2,
        weights_neighbour_bytes_total=3,
        weights_served_bytes_total=4,
        weights_rejected_total=5,
        weights_refused_total=6,
        neighbour_rtt_ms=((NodeId("nb"), 12.5),),
    ),
)


def test_telemetry_comes_back_as_it_was() -> None:
    assert decode_telemetry(encode_telemetry(TELEMETRY)) == TELEMETRY


@pytest.mark.parametrize("state", list(PresenceState))
def test_presence_comes_back_as_it_was(state: PresenceState) -> None:
    presence = Presence(state=state, incarnation=7, connection=1)
    assert decode_presence(encode_presence(presence)) == presence


@pytest.mark.parametrize("kind", list(TopicKind))
def test_a_topic_names_its_node(kind: TopicKind) -> None:
    assert parse_topic(PREFIX, node_topic(PREFIX, NodeId("na-1"), kind)) == ("na-1", kind)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "plait/v1/ffffffffffffffff/node/na/presence",
        f"{PREFIX}/node/na",
        f"{PREFIX}/node//presence",
        f"{PREFIX}/node/na/presence/more",
        f"{PREFIX}/node/na/secrets",
        f"{PREFIX}/node/{'n' * 65}/presence",
        f"{PREFIX}/node/n\x00a/presence",
        f"{PREFIX}/node/<b>/presence",
    ],
)
def test_a_foreign_topic_is_refused(topic: str) -> None:
    with pytest.raises(FrameError):
        parse_topic(PREFIX, topic)


def _changed(**changes: object) -> bytes:
    fields = json.loads(encode_telemetry(TELEMETRY))
    return json.dumps({**fields, **changes}).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[" * 10_000,
        b"x" * (PAYLOAD_BYTES_MAX + 1),
        _changed(v=2),
        _changed(sequence=-1),
        _changed(sequence=1.5),
        _changed(sequence=True),
        _changed(sequence=2**63),
        _changed(sequence="1"),
        _changed(sequence=None),
        _changed(stage_ms=float("nan")),
        _changed(stage_ms=float("inf")),
        _changed(stage_ms=-1),
        _changed(stage_ms=True),
        _changed(stage_ms="fast"),
        _changed(stage_ms=10**400),
        _changed(state="x" * 129),
        _changed(state="se\nrving"),
        _changed(state=5),
        _changed(span=[3, 3]),
        _changed(span=[1]),
        _changed(span=[0, 10**9]),
        _changed(span=[True, 2]),
        _changed(span="0-10"),
        _changed(model_id=5),
        _changed(neighbour_rtt_ms=[]),
        _changed(neighbour_rtt_ms={"a b": 1}),
        _changed(neighbour_rtt_ms={"nb": -1}),
        _changed(neighbour_rtt_ms={f"n{at}": 1 for at in range(257)}),
    ],
)
@pytest.mark.parametrize("decode", [decode_telemetry, decode_presence])
def test_nonsense_is_refused(payload: bytes, decode: Callable[[bytes], object]) -> None:
    if decode is decode_presence and b'"v": 1' in payload:
        payload = payload.replace(b'"state": "serving"', b'"state": "here"')
    with pytest.raises(FrameError):
        decode(payload)


@given(st.binary(max_size=400))
def test_any_bytes_are_decoded_or_refused(payload: bytes) -> None:
    for decode in (decode_telemetry, decode_presence):
        with pytest.raises(FrameError):
            decode(payload)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(json.loads(encode_telemetry(TELEMETRY)))), json_values)
def test_any_value_of_any_field_is_taken_or_refused(field: str, value: object) -> None:
    payload = _changed(**{field: value})
    try:
        taken = decode_telemetry(payload)
    except FrameError:
        return
    assert decode_telemetry(encode_telemetry(taken)).sequence == taken.sequence


def test_a_reading_with_many_neighbours_still_fits() -> None:
    neighbours = tuple((NodeId(f"n{at:016d}"), 123.456) for at in range(1_000))
    reading = TelemetryReading(state="serving", neighbour_rtt_ms=neighbours)
    payload = encode_telemetry(
        Telemetry(
            incarnation=1,
            connection=1,
            sequence=1,
            sent_unix_ms=1,
            readings_dropped_total=0,
            reading=reading,
        )
    )
    assert len(payload) <= PAYLOAD_BYTES_MAX
    assert len(decode_telemetry(payload).reading.neighbour_rtt_ms) == 256
