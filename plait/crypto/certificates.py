"""TLS keys, requests and certificates. P-256 throughout: grpcio's TLS refuses Ed25519 leaves."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from plait.errors import AuthenticationError, ConfigError
from plait.types import NodeId

COORDINATOR_NAME: Final = "plait-coordinator"
"""DNS name in every coordinator's certificate: what clients expect, however they dialled."""

CSR_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPair:
    """A certificate chain, leaf first, and the leaf's private key. Both PEM."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return "TlsPair(...)"

    def check(self) -> None:
        """Raises ConfigError unless both can be read and belong together."""
        leaf = certificate_from_pem(self.certificate_pem).public_key()
        key = key_from_pem(self.key_pem).public_key()
        if not isinstance(leaf, ec.EllipticCurvePublicKey) or leaf != key:
            raise ConfigError("the certificate and the private key do not belong together")


def node_tls_name(node_id: NodeId) -> str:
    """DNS name in a node's certificate: what neighbours expect, however they dialled."""
    return f"{node_id}.plait"


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises ConfigError where `pem` is no P-256 private key."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"not a private key in PEM form: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("the private key is not a P-256 key")
    return key


def make_csr(key: ec.EllipticCurvePrivateKey, node_id: NodeId) -> bytes:
    """A signing request (DER). The authority ignores the names in it; they help people."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.DER)


def csr_public_key(csr_der: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a request that proves its possession.

    Raises AuthenticationError(reason="bad_csr"): too long, unreadable, not P-256, wrong signature.
    """
    if len(csr_der) > CSR_BYTES_MAX:
        raise _bad_csr(f"is longer than {CSR_BYTES_MAX} bytes")
    try:
        request = x509.load_der_x509_csr(csr_der)
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise _bad_csr(f"cannot be read ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _bad_csr("is not for a P-256 key")
    if not is_signed:
        raise _bad_csr("is not signed by the key it names")
    return key


def certificate_from_pem(pem: bytes) -> x509.Certificate:
    """The first certificate of a chain. Raises ConfigError."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigError(f"not a certificate in PEM form: {error}") from None


def common_name(certificate: x509.Certificate) -> str:
    """The subject's common name, empty where there is not exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def certificate_names(certificate_pem: bytes) -> frozenset[str]:
    """Host names and IP addresses that the chain's leaf is for. Raises ConfigError."""
    leaf = certificate_from_pem(certificate_pem)
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset([*names.get_values_for_type(x509.DNSName), *map(str, addresses)])


def public_key_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """A canonical form for comparing keys."""
    return key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )


def expires_unix_ms(certificate_pem: bytes) -> int:
    """When the chain's leaf ends, wall clock."""
    return unix_ms_of(certificate_from_pem(certificate_pem).not_valid_after_utc)


def renew_at_unix_ms(certificate_pem: bytes) -> int:
    """Two thirds of the leaf's life: time to renew, with a third left for retries."""
    leaf = certificate_from_pem(certificate_pem)
    start = unix_ms_of(leaf.not_valid_before_utc)
    return start + (unix_ms_of(leaf.not_valid_after_utc) - start) * 2 // 3


def unix_ms_of(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


def datetime_of(unix_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(unix_ms // 1000, dt.UTC)


def _bad_csr(what: str) -> AuthenticationError:
    return AuthenticationError(f"the certificate request {what}", reason="bad_csr")
