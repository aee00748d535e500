"""Brokers, certificates and a publishing process for the MQTT tests."""

import asyncio
import contextlib
import random
import re
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from coordinator.shell.telemetry import TelemetrySubscriber
from coordinator.shell.telemetry_view import TelemetryView
from node.agent.telemetry import TelemetryPublisher
from plait.clock import SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import key_to_pem, make_csr, new_tls_key
from plait.types import LayerSpan, NodeId
from plait.wire.mqtt import BrokerAddress
from plait.wire.telemetry import TelemetryReading, default_prefix
from tests.kit.tools import needs

PREFIX = default_prefix("0123456789abcdef")
MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
needs_mosquitto = needs(MOSQUITTO, "Mosquitto", "mosquitto")
SHIPPED = Path(__file__).parents[2] / "docker" / "mosquitto"


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


def shipped(certificates: Path) -> tuple[str, ...]:
    """The shipped configuration over the papers in a folder, with this machine's paths and no
    disk."""
    text = (SHIPPED / "mosquitto.conf").read_text("utf-8")
    text = text.replace("/mosquitto/certs", str(certificates))
    text = text.replace("/mosquitto/config", str(SHIPPED))
    return tuple(
        line
        for line in text.splitlines()
        if line and not re.match(r"#|listener |persistence|autosave|log_", line)
    )


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


class Papers:
    """A network's authority, and certificates that it issues into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = CertificateAuthority.create(SystemClock())
        self.ca_pem = self._authority.certificate_pem.decode("ascii")
        self.ca_path = folder / "ca.pem"
        self.ca_path.write_text(self.ca_pem)

    def server(self) -> tuple[Path, Path]:
        """Paths of a coordinator's or broker's certificate and key, for localhost."""
        pair = self._authority.issue_server(("localhost",))
        return self._keep("server", pair.certificate_pem, pair.key_pem)

    def node(self, node_id: str) -> tuple[Path, Path]:
        """Paths of a node's certificate and key."""
        key = new_tls_key()
        certificate_pem = self._authority.issue_node(
            make_csr(key, NodeId(node_id)), NodeId(node_id)
        )
        return self._keep(node_id, certificate_pem, key_to_pem(key))

    def _keep(self, name: str, certificate_pem: bytes, key_pem: bytes) -> tuple[Path, Path]:
        certificate_path, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate_path.write_bytes(certificate_pem)
        key_path.write_bytes(key_pem)
        return certificate_path, key_path
