"""A network's certificate authority: one self-signed P-256 certificate that all others hang on."""

import datetime as dt
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from plait.clock import Clock
from plait.crypto.certificates import (
    COORDINATOR_NAME,
    TlsPair,
    certificate_from_pem,
    csr_public_key,
    datetime_of,
    key_from_pem,
    key_to_pem,
    new_tls_key,
    node_tls_name,
)
from plait.errors import ConfigError
from plait.types import NodeId

CA_DAYS: Final = 3652
SERVER_DAYS: Final = 90
NODE_DAYS: Final = 7
BROKER_NAME: Final = "plait-broker"
_HOST_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
BACKDATED_S: Final = 3600
"""Certificates begin an hour early, for machines whose clock is behind."""


class CertificateAuthority:
    """Issues the network's certificates. `network_id` is the start of its certificate's sha256."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, clock: Clock
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._clock = clock
        self.certificate_der = certificate.public_bytes(serialization.Encoding.DER)
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.network_id = network_id_of(self.certificate_der)

    @classmethod
    def create(cls, clock: Clock) -> "CertificateAuthority":
        """A new network's authority, valid for ten years."""
        key = new_tls_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "plait network")])
        builder = _dated(clock, CA_DAYS).subject_name(name).issuer_name(name)
        builder = (
            builder.public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        return cls(builder.sign(key, hashes.SHA256()), key, clock)

    @classmethod
    def load(
        cls, *, certificate_pem: bytes, key_pem: bytes, clock: Clock
    ) -> "CertificateAuthority":
        """Raises ConfigError where either is unreadable or they do not belong together."""
        certificate = certificate_from_pem(certificate_pem)
        key = key_from_pem(key_pem)
        held = certificate.public_key()
        if not isinstance(held, ec.EllipticCurvePublicKey) or held != key.public_key():
            raise ConfigError("the authority's certificate and private key do not belong together")
        return cls(certificate, key, clock)

    def key_pem(self) -> bytes:
        """The private key, for saving."""
        return key_to_pem(self._key)

    def issue_server(self, names: Sequence[str]) -> TlsPair:
        """A coordinator's certificate and key, valid 90 days.

        `names` are the host names and IP addresses it is dialled by; COORDINATOR_NAME is added.
        """
        key = new_tls_key()
        certificate = self._issue(
            key.public_key(),
            common_name=COORDINATOR_NAME,
            names=(COORDINATOR_NAME, *names),
            usages=(ExtendedKeyUsageOID.SERVER_AUTH,),
            days=SERVER_DAYS,
        )
        return TlsPair(certificate_pem=certificate, key_pem=key_to_pem(key))

    def issue_broker(self, names: Sequence[str]) -> TlsPair:
        """An MQTT broker's certificate and key, valid 90 days, for `names` alone: whoever holds
        its key must not pass for the coordinator."""
        key = new_tls_key()
        certificate = self._issue(
            key.public_key(),
            common_name=BROKER_NAME,
            names=names,
            usages=(ExtendedKeyUsageOID.SERVER_AUTH,),
            days=SERVER_DAYS,
        )
        return TlsPair(certificate_pem=certificate, key_pem=key_to_pem(key))

    def issue_node(self, csr_der: bytes, node_id: NodeId) -> bytes:
        """A node's certificate chain (PEM, leaf first), valid 7 days, for both ends of TLS.

        Raises AuthenticationError(reason="bad_csr"). Names in the request are ignored.
        """
        return self._issue(
            csr_public_key(csr_der),
            common_name=node_id,
            names=(node_tls_name(node_id),),
            usages=(ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
            days=NODE_DAYS,
        )

    def _issue(
        self,
        public_key: ec.EllipticCurvePublicKey,
        *,
        common_name: str,
        names: Sequence[str],
        usages: Sequence[x509.ObjectIdentifier],
        days: int,
    ) -> bytes:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        authority_key = self._key.public_key()
        builder = (
            _dated(self._clock, days)
            .subject_name(subject)
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_alternative(name) for name in dict.fromkeys(names)]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), critical=False
            )
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)


def network_id_of(ca_der: bytes) -> str:
    """A network's name: the first 16 hex digits of its authority certificate's sha256."""
    return hashlib.sha256(ca_der).hexdigest()[:16]


def check_issued_by(certificate_pem: bytes, ca_pem: bytes) -> x509.Certificate:
    """The chain's leaf, signed by the authority. Raises ConfigError(reason="wrong_ca")."""
    leaf, authority = certificate_from_pem(certificate_pem), certificate_from_pem(ca_pem)
    try:
        leaf.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(
            "the certificate was not issued by this network's authority", reason="wrong_ca"
        ) from None
    return leaf


def server_names(names: Iterable[str]) -> tuple[str, ...]:
    """`names` as a certificate spells them, without duplicates. Raises ConfigError."""
    return tuple(dict.fromkeys(str(_alternative(name).value) for name in names))


def _alternative(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        pass
    try:
        host = name.encode("idna").decode("ascii").lower()
    except UnicodeError:
        host = ""
    if not _HOST_NAME.fullmatch(host):
        raise ConfigError(f"{name!r} is neither a host name nor an IP address")
    return x509.DNSName(host)


def _dated(clock: Clock, days: int) -> x509.CertificateBuilder:
    now = datetime_of(clock.unix_ms())
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(seconds=BACKDATED_S))
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
