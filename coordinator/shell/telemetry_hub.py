"""Telemetry as a whole: our own broker or the operator's, what nodes are told, what we hear."""

import contextlib
import random
import secrets
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from coordinator.shell.authority import Authority
from coordinator.shell.broker import EmbeddedBroker
from coordinator.shell.servers import check_free
from coordinator.shell.telemetry import TelemetrySubscriber
from coordinator.shell.telemetry_view import TelemetryView
from plait.clock import Clock
from plait.config import write_private
from plait.crypto.certificates import COORDINATOR_NAME, key_to_pem, make_csr, new_tls_key
from plait.crypto.files import private_dir
from plait.errors import ConfigError
from plait.types import NodeId
from plait.wire.mqtt import BrokerAddress
from plait.wire.telemetry import default_prefix

LISTENER: Final = NodeId("coordinator")
"""Common name of the certificate with which the coordinator reads an operator's broker."""


class TelemetryHub:
    """What `coordinator.main` hands around: url and credentials for welcomes, a view, a task."""

    def __init__(
        self,
        *,
        url: str,
        prefix: str,
        view: TelemetryView,
        subscriber: TelemetrySubscriber | None,
        broker: EmbeddedBroker | None,
    ) -> None:
        self.url = url
        self.prefix = prefix
        self.view = view
        self.subscriber = subscriber
        self._broker = broker

    def credentials(self, node_id: NodeId) -> tuple[str, str]:
        """User name and password for a node's welcome; empty where its certificate is enough."""
        return ("", "") if self._broker is None else self._broker.node_credentials(node_id)


@contextlib.asynccontextmanager
async def telemetry_hub(
    *,
    authority: Authority,
    folder: Path,
    clock: Clock,
    rng: random.Random,
    url: str | None,
    listen: tuple[str, int] | None,
) -> AsyncIterator[TelemetryHub]:
    """`url` names an operator's broker, `listen` (host, port) starts an embedded one, with TLS by
    the network's own authority; neither: no telemetry. `folder` keeps keys, mode 0700.

    Raises ConfigError: a wrong url, a taken port.
    """
    prefix = default_prefix(authority.network_id)
    view = TelemetryView(prefix=prefix, clock=clock)

    def hub(url: str, address: BrokerAddress | None, broker: EmbeddedBroker | None) -> TelemetryHub:
        subscriber = (
            None
            if address is None
            else TelemetrySubscriber(address=address, prefix=prefix, view=view, rng=rng)
        )
        return TelemetryHub(url=url, prefix=prefix, view=view, subscriber=subscriber, broker=broker)

    if url is not None:
        yield hub(url, _operators_broker(url, authority, folder), None)
    elif listen is not None:
        check_free(*listen, flag="--mqtt-listen")
        broker = EmbeddedBroker(
            secret=secrets.token_bytes(32),
            prefix=prefix,
            host=listen[0],
            port=listen[1],
            tls=_server_context(authority, folder),
        )
        await broker.start()
        try:
            ca_pem = authority.ca_pem.decode("ascii")
            yield hub(
                broker.url,
                broker.listener_address(ca_pem=ca_pem, server_name=COORDINATOR_NAME),
                broker,
            )
        finally:
            await broker.stop()
    else:
        yield hub("", None, None)


def _operators_broker(url: str, authority: Authority, folder: Path) -> BrokerAddress:
    address = BrokerAddress.parse(url, default_host="", default_name=COORDINATOR_NAME)
    if not address.host:
        raise ConfigError(f"--mqtt {url}: name the broker's host")
    if not address.uses_tls:
        return address
    private_dir(folder)
    key = new_tls_key()
    key_path, certificate_path = folder / "listener.key", folder / "listener.pem"
    write_private(key_path, key_to_pem(key))
    write_private(certificate_path, authority.ca.issue_node(make_csr(key, LISTENER), LISTENER))
    return replace(
        address,
        ca_pem=authority.ca_pem.decode("ascii"),
        certificate_path=certificate_path,
        key_path=key_path,
    )


def _server_context(authority: Authority, folder: Path) -> ssl.SSLContext:
    private_dir(folder)
    pair = authority.server()
    key_path, certificate_path = folder / "broker.key", folder / "broker.pem"
    write_private(key_path, pair.key_pem)
    write_private(certificate_path, pair.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_path, key_path)
    return context


def write_broker_certificates(authority: Authority, folder: Path, names: tuple[str, ...]) -> None:
    """For an operator's Mosquitto: ca.pem, broker.pem and broker.key (0600), for `names`.

    Raises ConfigError where the folder cannot be written.
    """
    pair = authority.ca.issue_server(names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.pem").write_bytes(authority.ca_pem)
        write_private(folder / "broker.key", pair.key_pem)
        write_private(folder / "broker.pem", pair.certificate_pem)
    except OSError as error:
        raise ConfigError(f"--broker-certs {folder}: {error.strerror}") from error
