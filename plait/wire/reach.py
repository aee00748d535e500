"""Looks before it dials: gRPC says "unavailable" for every failure, this says which one it was."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from plait.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    PlaitError,
    UnavailableError,
)

PUBLIC_PORT: Final = 7420
REACH_S: Final = 10.0
_NOT_YET_VALID: Final = 9  # X509_V_ERR_CERT_NOT_YET_VALID
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_WRONG_NAME: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, .._IP_ADDRESS_MISMATCH


@dataclass(frozen=True, slots=True)
class Address:
    """Where something can be dialled."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, default_port: int = PUBLIC_PORT) -> "Address":
        """From HOST, HOST:PORT, IPv6 or [IPv6]:PORT. Raises ConfigError(reason="bad_address")."""
        text = text.strip()
        host, port = text, ""
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            port = rest.removeprefix(":")
            if not bracket or (rest and not rest.startswith(":")):
                host = ""
        elif text.count(":") == 1:
            host, _, port = text.partition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
        is_host = bool(host) and not any(char.isspace() or char in "/@[]" for char in host)
        if not is_host or (port and not is_port) or text.endswith(":"):
            raise ConfigError(
                f"{text!r} is not an address: give HOST:PORT, e.g. example.org:{default_port}",
                reason="bad_address",
            )
        return cls(host, int(port) if port else default_port)


async def check_reachable(
    address: Address, *, ca_pem: bytes, target_name: str, limit_s: float = REACH_S
) -> None:
    """Connect with TLS once and hang up.

    Raises:
        UnavailableError: dns_failed, connection_refused, unreachable, not_tls.
        DeadlineError: connect_timeout.
        AuthenticationError: wrong_ca (another network's coordinator), wrong_name.
        ConfigError: clock_skew.
    """
    try:
        async with asyncio.timeout(limit_s):
            await _check_any(address, _context(ca_pem), target_name)
    except TimeoutError:
        raise DeadlineError(
            f"{address} did not answer within {limit_s:g} s: is the address right, and does a "
            "firewall let this port through?",
            reason="connect_timeout",
        ) from None


async def _check_any(address: Address, context: ssl.SSLContext, target_name: str) -> None:
    last: PlaitError | None = None
    for host in await _resolve(address):
        try:
            _reader, writer = await asyncio.open_connection(
                host, address.port, ssl=context, server_hostname=target_name
            )
        except OSError as error:  # ssl.SSLError is one
            last = _explain(address, error)
            if isinstance(last, AuthenticationError | ConfigError):
                raise last from None
        else:
            writer.transport.abort()
            return
    if last is not None:
        raise last


async def _resolve(address: Address) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):
        raise UnavailableError(
            f"the name {address.host!r} is unknown to this machine's DNS: check its spelling and "
            "the network connection",
            reason="dns_failed",
        ) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _context(ca_pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError):
        raise ConfigError("the network's CA certificate cannot be read") from None
    return context


def _explain(address: Address, error: OSError) -> PlaitError:
    match error:
        case ssl.SSLCertVerificationError(verify_code=code) if code in (_NOT_YET_VALID, _EXPIRED):
            return ConfigError(
                f"the certificate of {address} is not valid now: set this machine's clock, or the "
                "coordinator's",
                reason="clock_skew",
            )
        case ssl.SSLCertVerificationError(verify_code=code) if code in _WRONG_NAME:
            return AuthenticationError(
                f"{address} belongs to this network but is not its coordinator's public port",
                reason="wrong_name",
            )
        case ssl.SSLCertVerificationError():
            return AuthenticationError(
                f"{address} is the coordinator of another network than the one this token or "
                "profile is for: check the address, or ask that network's operator for a token",
                reason="wrong_ca",
            )
        case ssl.SSLError():
            return UnavailableError(
                f"{address} does not speak TLS as a coordinator does: is the port right?",
                reason="not_tls",
            )
        case ConnectionRefusedError():
            return UnavailableError(
                f"{address} refused the connection: is the coordinator running, and is the port "
                "right?",
                reason="connection_refused",
            )
        case ConnectionResetError():
            return UnavailableError(
                f"{address} hung up at once: is the port right?", reason="not_tls"
            )
        case _:
            return UnavailableError(
                f"{address} cannot be reached: {error.strerror or error}", reason="unreachable"
            )
