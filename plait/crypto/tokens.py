"""Secrets that people carry: enrolment tokens and API keys. Only their sha256 is ever stored."""

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from plait.crypto.authority import network_id_of
from plait.errors import ConfigError

TOKEN_PREFIX: Final = "plait1."
TOKEN_CHARS_MAX: Final = 8192
_HEADER: Final = struct.Struct(">H4s8s24sB")  # length, checksum, token id, secret, address length
_HELP: Final = "copy it again as a whole, or ask the operator for a new one: `plait token create`"

KEY_PREFIX: Final = "sk-plait-"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """An enrolment token, opened. `ca_der` pins the network; `address` may be empty."""

    token_id: str
    secret: str = field(repr=False)
    ca_der: bytes = field(repr=False)
    address: str = ""

    @property
    def network_id(self) -> str:
        return network_id_of(self.ca_der)

    @property
    def ca_pem(self) -> bytes:
        certificate = x509.load_der_x509_certificate(self.ca_der)
        return certificate.public_bytes(serialization.Encoding.PEM)

    def encode(self) -> str:
        """The one paste-able word. Raises ConfigError for an address that is too long."""
        address = self.address.encode("utf-8")
        if len(address) > 255:
            raise ConfigError("the coordinator's address is longer than 255 bytes")
        body = address + self.ca_der
        token_id, secret = bytes.fromhex(self.token_id), bytes.fromhex(self.secret)
        packed = _HEADER.pack(
            _HEADER.size + len(body),
            _checksum(token_id + secret + body),
            token_id,
            secret,
            len(address),
        )
        return TOKEN_PREFIX + base64.urlsafe_b64encode(packed + body).decode("ascii").rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "JoinToken":
        """Raises ConfigError with a reason: token_malformed, token_truncated, token_version."""
        word = "".join(text[: TOKEN_CHARS_MAX + 1].split())
        _check_prefix(word)
        packed = _decode_base64(word[len(TOKEN_PREFIX) :])
        if len(packed) < _HEADER.size:
            raise _bad("token_truncated", f"is cut short; {_HELP}")
        length, checksum, token_id, secret, address_bytes = _HEADER.unpack_from(packed)
        if len(packed) < length:
            raise _bad(
                "token_truncated", f"is cut short ({len(packed)} of {length} bytes); {_HELP}"
            )
        body = packed[_HEADER.size :]
        if len(packed) > length or checksum != _checksum(token_id + secret + body):
            raise _bad("token_malformed", f"is damaged; {_HELP}")
        try:
            address = body[:address_bytes].decode("utf-8")
            x509.load_der_x509_certificate(body[address_bytes:])
        except (ValueError, x509.InvalidVersion):
            raise _bad("token_malformed", f"carries no certificate; {_HELP}") from None
        return cls(
            token_id=token_id.hex(),
            secret=secret.hex(),
            ca_der=body[address_bytes:],
            address=address,
        )


def new_join_token(*, ca_der: bytes, address: str = "") -> JoinToken:
    """A fresh token with a secret of 192 bits."""
    return JoinToken(
        token_id=secrets.token_hex(8),
        secret=secrets.token_hex(24),
        ca_der=ca_der,
        address=address,
    )


def new_api_key() -> tuple[str, str]:
    """A fresh API key of 256 bits, and its public id: ("sk-plait-<id>-<secret>", id)."""
    key_id = secrets.token_hex(6)
    return f"{KEY_PREFIX}{key_id}-{secrets.token_urlsafe(32)}", key_id


def api_key_id(key: str) -> str | None:
    """The public id in an API key, None where `key` has not that form."""
    if not key.startswith(KEY_PREFIX) or len(key) > 256 or not key.isascii():
        return None
    key_id, dash, secret = key[len(KEY_PREFIX) :].partition("-")
    return key_id if dash and key_id.isalnum() and len(secret) >= 32 else None


def secret_digest(secret: str) -> bytes:
    """What is stored of a secret. One sha256 is enough: secrets have 192 bits and more."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def is_secret(secret: str, digest: bytes) -> bool:
    """Whether `digest` is this secret's; takes the same time either way."""
    return hmac.compare_digest(secret_digest(secret), digest)


def _check_prefix(word: str) -> None:
    if len(word) > TOKEN_CHARS_MAX:
        raise _bad("token_malformed", f"is longer than any token; {_HELP}")
    if word.startswith(TOKEN_PREFIX):
        return
    version, dot, _rest = word.partition(".")
    if dot and version.startswith("plait") and version[5:].isdecimal():
        raise _bad(
            "token_version",
            f"is of version {version[5:]}; this plait reads version 1: update plait",
        )
    raise _bad("token_malformed", f"does not begin with {TOKEN_PREFIX!r}; {_HELP}")


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        if len(text) % 4 == 1 and text.isascii():
            raise _bad("token_truncated", f"is cut short; {_HELP}") from None
        raise _bad("token_malformed", f"has characters that no token has; {_HELP}") from None


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:4]


def _bad(reason: str, what: str) -> ConfigError:
    return ConfigError(f"the enrolment token {what}", reason=reason)
