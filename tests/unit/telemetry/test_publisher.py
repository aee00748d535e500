"""The publisher's buffer, without any broker."""

import asyncio
import contextlib
import random

import pytest

from node.agent.telemetry import TelemetryPublisher
from plait.clock import ManualClock
from plait.errors import ConfigError
from plait.types import NodeId
from plait.wire.mqtt import BrokerAddress
from plait.wire.telemetry import TelemetryReading


class Source:
    """Fails at every third reading when it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.num_readings = 0
        self.fails = fails

    def reading(self) -> TelemetryReading:
        self.num_readings += 1
        if self.fails and self.num_readings % 3 == 0:
            raise RuntimeError("no figures")
        return TelemetryReading(state="serving")


def publisher(source: Source, *, buffer_max: int = 1_000) -> TelemetryPublisher:
    # Port 9 of the discard service: nobody listens there.
    return TelemetryPublisher(
        address=BrokerAddress(host="127.0.0.1", port=9),
        prefix="plait/v1/x",
        node_id=NodeId("na"),
        incarnation=1,
        source=source,
        clock=ManualClock(),
        rng=random.Random(1),
        interval_s=0.001,
        buffer_max=buffer_max,
    )


async def test_the_buffer_is_bounded_and_drops_the_oldest() -> None:
    node = publisher(Source(), buffer_max=10)
    for _ in range(25):
        node.sample()
    assert node.stats().num_kept == 10
    assert node.stats().dropped_total == 15
    assert node.next_sequence == 16


async def test_without_a_broker_it_goes_on_and_can_be_cancelled() -> None:
    source = Source(fails=True)
    node = publisher(source, buffer_max=5)
    task = asyncio.create_task(node.run())
    async with asyncio.timeout(10):
        while source.num_readings < 20:  # noqa: ASYNC110 - the source is a plain counter
            await asyncio.sleep(0.001)
    assert node.stats().num_kept <= 5
    assert not node.stats().is_connected
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize(
    "url",
    ["", "http://h:1", "mqtt://h:port", "mqtt://h:99999", "mqtt://h/path", "h:1883", "mqtt://[::1"],
)
def test_a_wrong_address_is_a_clear_error(url: str) -> None:
    with pytest.raises(ConfigError, match="broker address"):
        BrokerAddress.parse(url, default_host="c")


def test_addresses_are_read() -> None:
    own = BrokerAddress.parse("mqtts://:7422", default_host="c", default_name="plait-coordinator")
    assert (own.host, own.port, own.uses_tls) == ("c", 7422, True)
    assert own.server_name == "plait-coordinator"
    other = BrokerAddress.parse("mqtt://ada:pw@broker.org", default_host="c", default_name="x")
    assert (other.host, other.port, other.username, other.password) == (
        "broker.org",
        1883,
        "ada",
        "pw",
    )
    assert other.server_name is None
    assert "pw" not in repr(other)
    with pytest.raises(ConfigError) as caught:
        BrokerAddress.parse("http://ada:pw@broker.org", default_host="c")
    assert "pw" not in caught.value.message
