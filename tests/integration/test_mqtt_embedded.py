"""The broker inside the coordinator: passwords, topics, limits, wills."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiomqtt
import pytest

from coordinator.shell.broker import EmbeddedBroker
from plait.types import NodeId
from plait.wire.mqtt import BrokerAddress, open_client
from plait.wire.telemetry import TopicKind, node_topic
from tests.integration.mqtt_support import (
    PREFIX,
    Papers,
    listening,
    presence,
    publisher,
    publishing_process,
    running,
    until,
)

pytestmark = pytest.mark.slow
SECRET = b"s" * 32


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(secret=SECRET, prefix=PREFIX, connections_max=8, silence_limit_s=1.0)
    await broker.start()
    yield broker
    await broker.stop()


def as_node(broker: EmbeddedBroker, node_id: str) -> BrokerAddress:
    address = BrokerAddress.parse(broker.url, default_host="127.0.0.1")
    return address.with_credentials(*broker.node_credentials(node_id))


async def test_killed_node_is_lost_within_two_seconds(broker: EmbeddedBroker) -> None:
    address = as_node(broker, "na")
    async with (
        listening(broker.listener_address()) as view,
        publishing_process(address) as process,
    ):
        await until(lambda: presence(view) == "online", limit_s=20)
        await until(lambda: any(n.telemetry is not None for n in view.nodes()))
        process.kill()
        assert await until(lambda: presence(view) == "lost") < 2.0


async def test_frozen_node_is_lost_when_its_silence_is_too_long(broker: EmbeddedBroker) -> None:
    address = as_node(broker, "na")
    async with (
        listening(broker.listener_address()) as view,
        publishing_process(address) as process,
    ):
        await until(lambda: presence(view) == "online", limit_s=20)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: presence(view) == "lost", limit_s=6)
        process.send_signal(signal.SIGCONT)
        await until(lambda: presence(view) == "online")


async def test_wrong_password_is_refused(broker: EmbeddedBroker) -> None:
    address = as_node(broker, "na").with_credentials("nb", "")
    with pytest.raises(aiomqtt.MqttError):
        async with open_client(address, identifier="x"):
            pass


async def test_forged_topic_and_subscription_are_refused(broker: EmbeddedBroker) -> None:
    async with listening(broker.listener_address()) as view:
        async with open_client(as_node(broker, "nb"), identifier="nb-1") as thief:
            await thief.publish(node_topic(PREFIX, NodeId("na"), TopicKind.PRESENCE), b"{}", qos=1)
            await thief.publish(node_topic(PREFIX, NodeId("nb"), TopicKind.PRESENCE), b"{}", qos=1)
            granted = await thief.subscribe(f"{PREFIX}/node/+/+")
            assert int(str(granted[0].value if hasattr(granted[0], "value") else granted[0])) >= 128
        await until(lambda: view.health().messages_total == 1)
        assert view.health().dropped == (("payload_version", 1),)


async def test_a_will_on_anothers_topic_is_refused_at_the_door(broker: EmbeddedBroker) -> None:
    will = aiomqtt.Will(
        node_topic(PREFIX, NodeId("na"), TopicKind.PRESENCE), b"{}", qos=1, retain=True
    )
    with pytest.raises(aiomqtt.MqttError):
        async with open_client(as_node(broker, "nb"), identifier="x", will=will):
            pass


async def test_garbage_on_the_port_ends_that_connection_only(broker: EmbeddedBroker) -> None:
    async with (
        listening(broker.listener_address()) as view,
        running(publisher(as_node(broker, "na")).run),
    ):
        await until(lambda: presence(view) == "online")
        for bytes_sent in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x30\xff\xff\xff\x7f" + b"x" * 100,
            b"\x00",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(bytes_sent)
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()
        seen = view.health().messages_total
        await until(lambda: view.health().messages_total > seen)


async def test_a_packet_beyond_the_limit_ends_its_connection(broker: EmbeddedBroker) -> None:
    async with listening(broker.listener_address()) as view:
        with pytest.raises(aiomqtt.MqttError):
            async with open_client(as_node(broker, "na"), identifier="x") as client:
                await client.publish(
                    node_topic(PREFIX, NodeId("na"), TopicKind.TELEMETRY), b"x" * 100_000, qos=1
                )
        assert view.health().messages_total == 0


async def test_connections_beyond_the_limit_are_closed(broker: EmbeddedBroker) -> None:
    writers = []
    for _ in range(8):
        _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writers.append(writer)
    await until(lambda: broker.stats().num_connections == 8)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    assert broker.stats().refused_total == 1
    # Those that say nothing are sent away when their silence is too long.
    await until(lambda: broker.stats().num_connections == 0)
    for opened in (*writers, writer):
        opened.close()


async def test_over_tls_with_the_networks_own_authority(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*papers.server())
    broker = EmbeddedBroker(secret=SECRET, prefix=PREFIX, tls=tls)
    await broker.start()
    try:
        address = BrokerAddress.parse(
            broker.url, default_host="127.0.0.1", default_name="plait-coordinator"
        )
        assert address.uses_tls
        address = address.with_credentials(*broker.node_credentials("na"))
        trusting = replace(address, ca_pem=papers.ca_pem)
        listener = broker.listener_address(ca_pem=papers.ca_pem, server_name="plait-coordinator")
        async with listening(listener) as view, running(publisher(trusting).run):
            await until(lambda: any(n.telemetry is not None for n in view.nodes()))
            wrong = (
                address,  # an authority that is not the network's
                replace(trusting, server_name="na.plait"),  # a certificate of someone else
            )
            for stranger in wrong:
                with pytest.raises(aiomqtt.MqttError, match="verify failed"):
                    async with open_client(stranger, identifier="x"):
                        pass
    finally:
        await broker.stop()
