"""Brokers, certificates and a publishing process for the MQTT tests."""

import asyncio
import contextlib
import datetime
import random
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coordinator.shell.telemetry import TelemetrySubscriber
from coordinator.shell.telemetry_view import TelemetryView
from node.agent.telemetry import TelemetryPublisher
from plait.clock import SystemClock
from plait.types import LayerSpan, NodeId
from plait.wire.mqtt import BrokerAddress
from plait.wire.telemetry import TelemetryReading, default_prefix

PREFIX = default_prefix("0123456789abcdef")
MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


class FakeSource:
    """Counts its readings in `tokens_total`."""

    def __init__(self) -> None:
        self.num_readings = 0

    def reading(self) -> TelemetryReading:
        self.num_readings += 1
        return TelemetryReading(
            state="serving",
            span=LayerSpan(0, 10),
            stage_ms=4.5,
            tokens_total=self.num_readings,
            neighbour_rtt_ms=((NodeId("nb"), 1.25),),
        )


async def until(is_true: Callable[[], bool], *, limit_s: float = 10.0) -> float:
    """Wait for a condition; the seconds it took. TimeoutError after `limit_s`."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    async with asyncio.timeout(limit_s):
        while not is_true():  # noqa: ASYNC110 - any condition, not only ours
            await asyncio.sleep(0.005)
    return loop.time() - start_s


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def publisher(
    address: BrokerAddress, *, node_id: str = "na", interval_s: float = 0.1, incarnation: int = 7
) -> TelemetryPublisher:
    """A publisher with a fake source."""
    return TelemetryPublisher(
        address=address,
        prefix=PREFIX,
        node_id=NodeId(node_id),
        incarnation=incarnation,
        source=FakeSource(),
        clock=SystemClock(),
        rng=random.Random(3),
        interval_s=interval_s,
    )


@contextlib.asynccontextmanager
async def running(*runners: Callable[[], object]) -> AsyncIterator[list[asyncio.Task[object]]]:
    """Tasks for as long as the block lasts; cancelled and awaited after it."""
    tasks = [asyncio.ensure_future(runner()) for runner in runners]  # type: ignore[call-overload]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def listening(address: BrokerAddress) -> AsyncIterator[TelemetryView]:
    """A subscribed view."""
    view = TelemetryView(prefix=PREFIX, clock=SystemClock())
    subscriber = TelemetrySubscriber(
        address=address, prefix=PREFIX, view=view, rng=random.Random(4)
    )
    async with running(subscriber.run):
        await until(lambda: view.is_connected)
        yield view


def presence(view: TelemetryView, node_id: str = "na") -> str | None:
    """What the view says of a node."""
    for node in view.nodes():
        if node.node_id == node_id and node.presence is not None:
            return node.presence.value
    return None


@contextlib.asynccontextmanager
async def mosquitto(
    folder: Path, port: int, lines: tuple[str, ...] = ("allow_anonymous true",)
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A real Mosquitto on loopback. It is killed at the end, frozen or not."""
    assert MOSQUITTO is not None
    config = folder / f"mosquitto-{port}.conf"
    config.write_text("\n".join((f"listener {port} 127.0.0.1", *lines, "user root", "")))
    process = await asyncio.create_subprocess_exec(
        MOSQUITTO,
        "-c",
        str(config),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until(lambda: _answers(port) or process.returncode is not None)
        assert process.returncode is None, "mosquitto did not start"
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.asynccontextmanager
async def publishing_process(
    address: BrokerAddress, node_id: str = "na"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of its own that publishes until it is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.mqtt_publish",
        f"mqtt://127.0.0.1:{address.port}",
        PREFIX,
        node_id,
        address.username or "",
        address.password or "",
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Authority:
    """A small CA that issues P-256 certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "plait test CA")])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_ca_usage(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.ca_path = folder / "ca.pem"
        self.ca_path.write_text(self.ca_pem)

    def issue(self, common_name: str) -> tuple[Path, Path]:
        """Paths of a certificate and its key; the name is also a DNS name, beside localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(common_name)])
        certificate = (
            self._builder(subject, key)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        certificate_path = self._folder / f"{common_name}.pem"
        key_path = self._folder / f"{common_name}.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate_path, key_path

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
