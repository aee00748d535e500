"""Telemetry as a whole: our own broker or the operator's, what nodes are told, what we hear."""

import asyncio
import contextlib
import random
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from coordinator.shell.authority import Authority
from coordinator.shell.broker import EmbeddedBroker
from coordinator.shell.telemetry import TelemetrySubscriber
from coordinator.shell.telemetry_view import TelemetryView
from plait.clock import Clock
from plait.config import write_private
from plait.crypto.certificates import (
    COORDINATOR_NAME,
    TlsPair,
    key_to_pem,
    make_csr,
    new_tls_key,
    renew_at_unix_ms,
)
from plait.crypto.files import private_dir
from plait.errors import ConfigError
from plait.log import get
from plait.types import NodeId
from plait.wire.listening import check_bindable
from plait.wire.mqtt import BrokerAddress
from plait.wire.telemetry import default_prefix

log = get("telemetry")
REFRESH_S: Final = 3_600.0
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
        refresh: Callable[[], None],
    ) -> None:
        self.url = url
        self.prefix = prefix
        self.view = view
        self.subscriber = subscriber
        self.refresh = refresh
        self._broker = broker

    async def maintain(self) -> None:
        """Renew the TLS files in time; connections that are open go on. Until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                self.refresh()
            except (OSError, ConfigError) as error:
                log.warning("telemetry_papers_not_renewed", error=str(error))

    def credentials(self, node_id: NodeId) -> tuple[str, str]:
        """User name and password for a node's welcome; empty where its certificate is enough."""
        return ("", "") if self._broker is None else self._broker.node_credentials(node_id)


def broker_address(url: str) -> BrokerAddress:
    """An operator's broker. Raises ConfigError that names --mqtt."""
    try:
        address = BrokerAddress.parse(url, default_host="")
    except ConfigError as error:
        raise ConfigError(f"--mqtt: {error.message}") from None
    if not address.host:
        raise ConfigError(
            f"--mqtt: {url.partition('://')[0]}://HOST:PORT needs the host of your broker; without "
            "--mqtt a broker runs inside the coordinator"
        )
    return address


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

    def hub(
        url: str,
        address: BrokerAddress | None = None,
        *,
        broker: EmbeddedBroker | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> TelemetryHub:
        subscriber = None
        if address is not None:
            subscriber = TelemetrySubscriber(address=address, prefix=prefix, view=view, rng=rng)
        return TelemetryHub(
            url=url,
            prefix=prefix,
            view=view,
            subscriber=subscriber,
            broker=broker,
            refresh=refresh,
        )

    if url is not None:
        address = broker_address(url)
        if address.uses_tls:
            papers = ListenerPapers(authority, private_dir(folder), clock)
            yield hub(url, papers.on(address), refresh=papers.refresh)
        else:
            yield hub(url, address)
    elif listen is not None:
        check_bindable(*listen, flag="--mqtt-listen")
        own = BrokerPapers(authority, private_dir(folder))
        broker = EmbeddedBroker(
            secret=secrets.token_bytes(32),
            prefix=prefix,
            host=listen[0],
            port=listen[1],
            tls=own.context,
        )
        await broker.start()
        try:
            ca_pem = authority.ca_pem.decode("ascii")
            address = broker.listener_address(ca_pem=ca_pem, server_name=COORDINATOR_NAME)
            yield hub(broker.url, address, broker=broker, refresh=own.refresh)
        finally:
            await broker.stop()
    else:
        yield hub("")


class ListenerPapers:
    """The coordinator's client certificate for an operator's broker, 0600 in `folder`."""

    def __init__(self, authority: Authority, folder: Path, clock: Clock) -> None:
        self._authority = authority
        self._clock = clock
        self.key_path, self.certificate_path = folder / "listener.key", folder / "listener.pem"
        self._issue()

    def on(self, address: BrokerAddress) -> BrokerAddress:
        """The same broker, with these papers; they are read again at each connection."""
        return replace(
            address,
            ca_pem=self._authority.ca_pem.decode("ascii"),
            certificate_path=self.certificate_path,
            key_path=self.key_path,
        )

    def refresh(self) -> None:
        """A new certificate, once two thirds of the old one's life are over."""
        if self._clock.unix_ms() >= renew_at_unix_ms(self.certificate_path.read_bytes()):
            self._issue()

    def _issue(self) -> None:
        key = new_tls_key()
        chain = self._authority.ca.issue_node(make_csr(key, LISTENER), LISTENER)
        write_private(self.key_path, key_to_pem(key))
        write_private(self.certificate_path, chain)


class BrokerPapers:
    """The embedded broker's TLS: the coordinator's own certificate, followed when it is renewed."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self._authority = authority
        self._key_path, self._certificate_path = folder / "broker.key", folder / "broker.pem"
        self._pair: TlsPair | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.refresh()

    def refresh(self) -> None:
        """Load the coordinator's current certificate, for connections from now on."""
        pair = self._authority.server()
        if pair is self._pair:
            return
        write_private(self._key_path, pair.key_pem)
        write_private(self._certificate_path, pair.certificate_pem)
        self.context.load_cert_chain(self._certificate_path, self._key_path)
        self._pair = pair
