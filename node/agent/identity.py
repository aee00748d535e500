"""A node's papers on disk: identity, certificate, and whom it trusts."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from plait.config import home_dir, write_private
from plait.crypto.authority import check_issued_by
from plait.crypto.certificates import (
    TlsPair,
    common_name,
    expires_unix_ms,
    key_from_pem,
    key_to_pem,
    make_csr,
    new_tls_key,
    renew_at_unix_ms,
)
from plait.crypto.files import private_dir, read_private
from plait.crypto.identity import KEY_BYTES, NodeIdentity
from plait.errors import AuthenticationError, ConfigError
from plait.types import NodeId

_IDENTITY: Final = "identity.pem"
_TLS: Final = "tls.pem"
_CA: Final = "ca.crt"
_NODE: Final = "node.json"
_CERTIFICATE_MARK: Final = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCredentials:
    """What an enrolled node needs. Addresses are host:port.

    `ticket_key` is the Ed25519 public key (32 bytes) that signs this network's route tickets.
    """

    home: Path
    identity: NodeIdentity
    display_name: str
    network_id: str
    tls: TlsPair
    ca_pem: bytes
    ticket_key: bytes
    coordinator_address: str
    node_address: str

    @property
    def node_id(self) -> NodeId:
        return self.identity.node_id

    @property
    def renew_at_unix_ms(self) -> int:
        """Two thirds of the certificate's life."""
        return renew_at_unix_ms(self.tls.certificate_pem)

    @property
    def expires_unix_ms(self) -> int:
        """When the certificate ends. The identity never does."""
        return expires_unix_ms(self.tls.certificate_pem)

    def save(self) -> None:
        """Write everything under `home`, 0700 and 0600; what says "enrolled" comes last."""
        private_dir(self.home)
        self.identity.save(self.home / _IDENTITY)
        self.save_tls()
        write_private(self.home / _CA, self.ca_pem)
        facts = {
            "node_id": self.node_id,
            "display_name": self.display_name,
            "network_id": self.network_id,
            "ticket_key": self.ticket_key.hex(),
            "coordinator_address": self.coordinator_address,
            "node_address": self.node_address,
        }
        write_private(self.home / _NODE, json.dumps(facts, indent=1).encode("utf-8"))

    def save_tls(self) -> None:
        """Replace key and certificate in one step: they share a file."""
        write_private(self.home / _TLS, self.tls.key_pem + self.tls.certificate_pem)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequest:
    """A fresh TLS key, and the request for its certificate. The key never leaves the node."""

    key_pem: bytes
    csr_der: bytes

    @classmethod
    def make(cls, node_id: NodeId) -> "CertificateRequest":
        key = new_tls_key()
        return cls(key_pem=key_to_pem(key), csr_der=make_csr(key, node_id))

    def __repr__(self) -> str:
        return "CertificateRequest(...)"


def node_home(name: str = "default") -> Path:
    """The folder of one of this machine's nodes. Raises ConfigError for an unfit name."""
    if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"{name!r} cannot name a node: use letters, digits, - and _")
    return home_dir() / "nodes" / name


def has_credentials(home: Path) -> bool:
    """Whether a node enrolled here before."""
    return (home / _NODE).exists()


def load_identity(home: Path) -> NodeIdentity:
    """The identity in `home`; a new one where there is none yet. Raises ConfigError."""
    return NodeIdentity.load_or_generate(home / _IDENTITY)


def load_credentials(home: Path) -> NodeCredentials:
    """Raises ConfigError: not enrolled, incomplete, corrupt, or open to others."""
    if not has_credentials(home):
        raise ConfigError(
            f"no node is enrolled in {home}: run `plait node join ADDRESS --token ...`",
            reason="not_enrolled",
        )
    identity = NodeIdentity.load(home / _IDENTITY)
    try:
        facts = json.loads((home / _NODE).read_text("utf-8"))
        ca_pem = (home / _CA).read_bytes()
        credentials = NodeCredentials(
            home=home,
            identity=identity,
            display_name=str(facts["display_name"]),
            network_id=str(facts["network_id"]),
            tls=_split_tls(read_private(home / _TLS)),
            ca_pem=ca_pem,
            ticket_key=bytes.fromhex(facts["ticket_key"]),
            coordinator_address=str(facts["coordinator_address"]),
            node_address=str(facts["node_address"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the node's papers in {home} are damaged ({type(error).__name__}): join again with a "
            "new token; the identity is kept",
            reason="credentials_corrupt",
        ) from None
    check_credentials(credentials)
    return credentials


def check_credentials(credentials: NodeCredentials) -> None:
    """Raises ConfigError unless key, certificate, authority and identity belong together."""
    credentials.tls.check()
    leaf = check_issued_by(credentials.tls.certificate_pem, credentials.ca_pem)
    if common_name(leaf) != credentials.node_id:
        raise ConfigError(
            f"the certificate is for {common_name(leaf)!r}, not for {credentials.node_id}",
            reason="credentials_corrupt",
        )
    if len(credentials.ticket_key) != KEY_BYTES:
        raise ConfigError("the ticket key is not an Ed25519 key", reason="credentials_corrupt")


def with_certificate(
    credentials: NodeCredentials, request: CertificateRequest, chain_pem: bytes
) -> NodeCredentials:
    """Credentials with a renewed certificate, checked and saved.

    Raises AuthenticationError(reason="bad_certificate"); the old certificate then stays.
    """
    tls = TlsPair(certificate_pem=chain_pem, key_pem=request.key_pem)
    renewed = replace(credentials, tls=tls)
    try:
        check_credentials(renewed)
    except ConfigError as error:
        raise AuthenticationError(
            f"the coordinator sent an unfit certificate: {error.message}", reason="bad_certificate"
        ) from None
    renewed.save_tls()
    return renewed


def _split_tls(pem: bytes) -> TlsPair:
    key, mark, certificates = pem.partition(_CERTIFICATE_MARK)
    key_from_pem(key)
    return TlsPair(certificate_pem=mark + certificates, key_pem=key)
