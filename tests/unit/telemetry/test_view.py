"""The coordinator's view: newest wins, late wills are recognised, garbage is counted."""

import dataclasses

from coordinator.ports import NodeTelemetry
from coordinator.shell.telemetry_view import TelemetryView
from plait.clock import ManualClock
from plait.types import NodeId
from plait.wire.telemetry import (
    Presence,
    PresenceState,
    Telemetry,
    TelemetryReading,
    TopicKind,
    default_prefix,
    encode_presence,
    encode_telemetry,
    node_topic,
)

PREFIX = default_prefix("0123456789abcdef")


class Story:
    """Tells a view what arrives."""

    def __init__(self, nodes_max: int = 8) -> None:
        self.clock = ManualClock(50_000)
        self.view = TelemetryView(prefix=PREFIX, clock=self.clock, nodes_max=nodes_max)

    def presence(
        self, state: PresenceState, *, incarnation: int = 1, connection: int = 1, node: str = "na"
    ) -> None:
        presence = Presence(state=state, incarnation=incarnation, connection=connection)
        topic = node_topic(PREFIX, NodeId(node), TopicKind.PRESENCE)
        self.view.take(topic, encode_presence(presence))

    def reading(
        self, sequence: int, *, incarnation: int = 1, connection: int = 1, node: str = "na"
    ) -> None:
        telemetry = Telemetry(
            incarnation=incarnation,
            connection=connection,
            sequence=sequence,
            sent_unix_ms=1,
            readings_dropped_total=0,
            reading=TelemetryReading(state="serving", tokens_total=sequence),
        )
        topic = node_topic(PREFIX, NodeId(node), TopicKind.TELEMETRY)
        self.view.take(topic, encode_telemetry(telemetry))

    @property
    def node(self) -> NodeTelemetry:
        (node,) = self.view.nodes()
        return node

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.view.health().dropped)


def test_the_newest_reading_stays_and_ages() -> None:
    story = Story()
    story.reading(1)
    story.reading(2)
    story.clock.advance(1_500)
    assert story.node.telemetry is not None
    assert story.node.telemetry.sequence == 2
    assert story.node.telemetry_age_ms == 1_500
    assert story.node.presence is PresenceState.ONLINE


def test_a_late_reading_is_counted_not_shown() -> None:
    story = Story()
    story.reading(5)
    story.reading(4)
    story.reading(5)
    assert story.node.telemetry is not None
    assert story.node.telemetry.sequence == 5
    assert story.dropped == {"telemetry_late": 2}


def test_a_restarted_node_counts_from_one_again() -> None:
    story = Story()
    story.reading(500, incarnation=1)
    story.reading(1, incarnation=2)
    assert story.node.telemetry is not None
    assert story.node.telemetry.incarnation == 2


def test_the_will_of_an_old_connection_does_not_declare_a_node_lost() -> None:
    story = Story()
    story.presence(PresenceState.ONLINE, connection=2)
    story.presence(PresenceState.LOST, connection=1)
    assert story.node.presence is PresenceState.ONLINE
    assert story.dropped == {"presence_late": 1}


def test_the_will_of_this_connection_does() -> None:
    story = Story()
    story.presence(PresenceState.ONLINE)
    story.presence(PresenceState.LOST)
    assert story.node.presence is PresenceState.LOST


def test_a_node_that_speaks_on_a_new_connection_is_online() -> None:
    story = Story()
    story.presence(PresenceState.LOST, connection=1)
    story.reading(9, connection=2)
    assert story.node.presence is PresenceState.ONLINE
    story.presence(PresenceState.LOST, connection=1)
    assert story.node.presence is PresenceState.ONLINE


def test_garbage_is_dropped_and_counted() -> None:
    story = Story()
    topic = node_topic(PREFIX, NodeId("na"), TopicKind.TELEMETRY)
    for payload in (b"{}", b"\x00", None, "text", 5, b"x" * 20_000):
        story.view.take(topic, payload)
    story.view.take("elsewhere", b"{}")
    story.view.take(f"{PREFIX}/node/na/other", b"{}")
    assert story.dropped == {
        "payload_invalid": 4,
        "payload_too_long": 1,
        "payload_version": 1,
        "topic_foreign": 2,
    }
    assert story.view.health().messages_total == 8
    assert story.view.nodes() == []


def test_no_more_nodes_than_the_limit_are_kept() -> None:
    story = Story(nodes_max=2)
    for name in ("na", "nb", "nc"):
        story.reading(1, node=name)
    assert [node.node_id for node in story.view.nodes()] == ["na", "nb"]
    assert story.dropped == {"nodes_too_many": 1}


def test_what_is_shown_does_not_change_afterwards() -> None:
    story = Story()
    story.reading(1)
    before = story.node
    story.reading(2)
    assert before == dataclasses.replace(before)
    assert before.telemetry is not None
    assert before.telemetry.sequence == 1
