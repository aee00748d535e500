"""The coordinator reads an operator's Mosquitto that runs from the papers it wrote for it."""

import random
from pathlib import Path

import pytest

from coordinator.shell.authority import Authority
from coordinator.shell.broker_certificates import write_broker_certificates
from coordinator.shell.telemetry_hub import telemetry_hub
from node.agent.telemetry import TelemetryPublisher
from plait.clock import SystemClock
from plait.crypto.certificates import key_to_pem, make_csr, new_tls_key
from plait.types import NodeId
from plait.wire.mqtt import BrokerAddress
from tests.integration.mqtt_support import (
    FakeSource,
    mosquitto,
    needs_mosquitto,
    presence,
    running,
    shipped,
    until,
)
from tests.kit.tools import free_port

pytestmark = [pytest.mark.slow, needs_mosquitto]
NODE = NodeId("nabc")


async def test_a_broker_that_comes_late_is_found_and_read(tmp_path: Path) -> None:
    clock, port, certificates = SystemClock(), free_port(), tmp_path / "certs"
    authority = Authority.open(tmp_path / "keys", clock)
    write_broker_certificates(authority.ca, certificates, ("localhost",), clock)
    async with telemetry_hub(
        authority=authority,
        folder=tmp_path / "telemetry",
        clock=clock,
        rng=random.Random(1),
        url=f"mqtts://localhost:{port}",
        listen=None,
    ) as hub:
        assert hub.subscriber is not None
        assert hub.credentials(NODE) == ("", "")
        node = node_of(authority, tmp_path, port, hub.prefix)
        async with running(hub.subscriber.run, node.run):
            await until(lambda: node.stats().num_kept > 2)
            assert not hub.view.is_connected
            async with mosquitto(tmp_path, port, shipped(certificates)):
                await until(lambda: hub.view.is_connected)
                await until(lambda: any(n.telemetry is not None for n in hub.view.nodes()))
                assert presence(hub.view, NODE) == "online"
                assert hub.view.health().dropped == ()


def node_of(authority: Authority, folder: Path, port: int, prefix: str) -> TelemetryPublisher:
    """An enrolled node's voice."""
    key = new_tls_key()
    papers = folder / "tls.pem"
    papers.write_bytes(key_to_pem(key) + authority.ca.issue_node(make_csr(key, NODE), NODE))
    return TelemetryPublisher(
        address=BrokerAddress(
            host="localhost",
            port=port,
            uses_tls=True,
            ca_pem=authority.ca_pem.decode("ascii"),
            certificate_path=papers,
        ),
        prefix=prefix,
        node_id=NODE,
        incarnation=7,
        source=FakeSource(),
        clock=SystemClock(),
        rng=random.Random(2),
        interval_s=0.1,
    )
