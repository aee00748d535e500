"""Where the network is and who we are: arguments, then environment, then the user's profile."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from grpc import aio

from plait.config import ClientProfile
from plait.crypto.certificates import COORDINATOR_NAME
from plait.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    InvalidRequestError,
    PlaitError,
    UnavailableError,
)
from plait.wire.channel import FRAME_BYTES_MAX, Options, channel_options
from plait.wire.status import REASON_KEY, error_from_rpc
from plait.wire.trace_context import TRACEPARENT, read_trace_parent

DEFAULT_TIMEOUT_S: Final = 600.0
WRONG_CA_SIGN: Final = "CERTIFICATE_VERIFY_FAILED"
"""What gRPC's core says where the certificate is not of this CA: no retry helps."""
TOO_LARGE_SIGN: Final = re.compile(r"^(?!CLIENT).*larger than max \((\d+) vs\. (\d+)\)")
"""What gRPC's core says of a request above the coordinator's limit: no retry helps."""
DEADLINE_SIGN: Final = "Deadline Exceeded"
"""What it says where a call's time is up; the code beside it is not always the fitting one."""
SHORT_TIMEOUT_S: Final = 15.0
"""For calls that do not generate."""

Metadata = tuple[tuple[str, str], ...]
"""What goes with every call."""

RESPONSE_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A network and a key for it. `ca_pem` is the only trust anchor."""

    address: str
    api_key: str
    ca_pem: bytes

    def __repr__(self) -> str:
        return f"Settings(address={self.address!r})"

    @property
    def metadata(self) -> Metadata:
        return (("authorization", f"Bearer {self.api_key}"),)

    def metadata_in(self, traceparent: str | None) -> Metadata:
        """The same, for a call that belongs to a trace. Raises InvalidRequestError."""
        if not traceparent:
            return self.metadata
        if read_trace_parent(traceparent) is None:
            raise InvalidRequestError(
                "traceparent must be as W3C Trace Context writes it: 00-TRACE-SPAN-FLAGS",
                param=TRACEPARENT,
            )
        return (*self.metadata, (TRACEPARENT, traceparent))

    @property
    def options(self) -> Options:
        """Channel options: the certificate's name is expected, however the address reads."""
        return [
            *channel_options(RESPONSE_BYTES_MAX),
            ("grpc.ssl_target_name_override", COORDINATOR_NAME),
            ("grpc.default_authority", COORDINATOR_NAME),
            # A network that was gone is found again soon after it is back.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(root_certificates=self.ca_pem)

    def explain(self, error: grpc.RpcError, *, timeout_s: float, what: str) -> PlaitError:
        """The typed error behind a failed call, which had `timeout_s` for `what`."""
        details = error.details() if isinstance(error, grpc.Call | aio.AioRpcError) else None
        if WRONG_CA_SIGN in (details or ""):
            return AuthenticationError(
                f"{self.address} is the coordinator of another network than the one this CA is "
                "for: check the address and the CA",
                reason="wrong_ca",
            )
        if (size := TOO_LARGE_SIGN.search(details or "")) is not None:
            return InvalidRequestError(
                f"the request is too large: {int(size[1]):,} bytes, of at most {int(size[2]):,}",
                reason="request_too_large",
            )
        if _is_time_up(error, details or ""):
            return DeadlineError(f"{what} did not come within {timeout_s:g} s")
        known = error_from_rpc(error)
        if isinstance(known, UnavailableError) and known.code == UnavailableError.reason:
            return UnavailableError(
                f"the coordinator at {self.address} cannot be reached: {known.message}",
                reason="coordinator_unreachable",
            )
        return known


def _is_time_up(error: grpc.RpcError, details: str) -> bool:
    """Whether our own deadline passed; the coordinator's have a reason with them."""
    if not isinstance(error, grpc.Call | aio.AioRpcError):
        return False
    if REASON_KEY in dict(error.trailing_metadata() or ()):
        return False
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED or DEADLINE_SIGN in details


def resolve(address: str | None, api_key: str | None, ca: str | Path | bytes | None) -> Settings:
    """Fill what is not given from PLAIT_ADDRESS, PLAIT_API_KEY and PLAIT_CA, then from the profile.

    Args:
        ca: the CA's certificate: PEM, or the path of a PEM file.

    Raises:
        ConfigError: something is missing or unreadable.
    """
    address = address or os.environ.get("PLAIT_ADDRESS") or None
    api_key = api_key or os.environ.get("PLAIT_API_KEY") or None
    ca = ca or os.environ.get("PLAIT_CA") or None
    if address is None or api_key is None or ca is None:
        profile = ClientProfile.load()
        address = address or profile.address
        api_key = api_key or profile.api_key
        ca = ca or profile.ca_pem.encode()
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"the address must read host:port, not {address!r}")
    if not api_key.isascii() or not api_key.isprintable():
        raise ConfigError("the API key holds characters that no key has")
    return Settings(address=address, api_key=api_key, ca_pem=_pem(ca))


def _pem(ca: str | Path | bytes) -> bytes:
    if isinstance(ca, bytes):
        content = ca
    elif isinstance(ca, str) and "-----BEGIN" in ca:
        content = ca.encode()
    else:
        try:
            content = Path(ca).read_bytes()
        except OSError as error:
            raise ConfigError(f"the CA file {ca} cannot be read: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise ConfigError("the CA is not a certificate in PEM form")
    return content
