"""How to reach a broker: the address in a welcome, credentials, TLS. Used by node and coordinator.

aiomqtt is imported here and must not be imported by the SDK or the command line.
"""

import socket
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiomqtt

from plait.errors import ConfigError, plain_cause

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
KEEPALIVE_S: Final = 3
"""A frozen client is declared lost after 1.5 times this; a killed one at once."""
CALL_LIMIT_S: Final = 5.0
BACKOFF_MAX_S: Final = 8.0
"""With the connect's own limit a link is back within 10 s of the broker's return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """Where a broker is and how to speak to it.

    With `uses_tls`, the broker is checked against `ca_pem` and must bear `server_name`, or `host`
    where that is None; certificate and key prove the client where the broker asks.
    """

    host: str
    port: int
    uses_tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_pem: str | None = None
    certificate_path: Path | None = None
    key_path: Path | None = None
    server_name: str | None = None

    @classmethod
    def parse(
        cls, url: str, *, default_host: str, default_name: str | None = None
    ) -> "BrokerAddress":
        """Read `mqtt://[user[:password]@][host][:port]` or `mqtts://...`.

        An empty host is the coordinator's: `default_host`, whose certificate bears
        `default_name`. Raises ConfigError.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"the broker address {_bare(url)!r} is wrong: {error}") from None
        if parts.scheme not in PORTS or parts.query or parts.path not in ("", "/"):
            raise ConfigError(
                f"the broker address {_bare(url)!r} is wrong: write mqtt://host:port or "
                "mqtts://host:port"
            )
        return cls(
            host=parts.hostname or default_host,
            port=port if port is not None else PORTS[parts.scheme],
            uses_tls=parts.scheme == "mqtts",
            username=parts.username,
            password=parts.password,
            server_name=None if parts.hostname else default_name,
        )

    def with_credentials(self, username: str, password: str) -> "BrokerAddress":
        """The same broker; empty strings leave what the address says."""
        return replace(self, username=username or self.username, password=password or self.password)

    def tls_context(self) -> ssl.SSLContext | None:
        """A client context, TLS 1.2 or newer; None without TLS. Raises ConfigError."""
        if not self.uses_tls:
            return None
        try:
            context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.expected_name = self.server_name
            if self.ca_pem is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(cadata=self.ca_pem)
            if self.certificate_path is not None:
                context.load_cert_chain(self.certificate_path, self.key_path)
        except (OSError, ValueError) as error:
            why = plain_cause(error)
            raise ConfigError(f"the broker's TLS files cannot be used: {why}") from error
        return context


class _NamedContext(ssl.SSLContext):
    """Expects a name, not the address that was dialled: addresses change, names are signed."""

    expected_name: str | None = None

    def wrap_socket(  # type: ignore[override]  # the base's long list of defaults
        self,
        sock: socket.socket,
        server_hostname: str | None = None,
        do_handshake_on_connect: bool = True,
    ) -> ssl.SSLSocket:
        return super().wrap_socket(
            sock,
            server_hostname=self.expected_name or server_hostname,
            do_handshake_on_connect=do_handshake_on_connect,
        )


def open_client(
    address: BrokerAddress,
    *,
    identifier: str,
    will: aiomqtt.Will | None = None,
    incoming_max: int = 0,
) -> aiomqtt.Client:
    """A client that is not connected yet; connect with `async with`.

    Raises ConfigError where the TLS files cannot be used.
    """
    return aiomqtt.Client(
        address.host,
        address.port,
        username=address.username,
        password=address.password,
        identifier=identifier,
        will=will,
        clean_session=True,
        timeout=CALL_LIMIT_S,
        keepalive=KEEPALIVE_S,
        max_queued_incoming_messages=incoming_max,
        max_queued_outgoing_messages=64,
        max_inflight_messages=16,
        tls_context=address.tls_context(),
    )


def _bare(url: str) -> str:
    """Without credentials, for messages."""
    return url.rsplit("@", 1)[-1]
