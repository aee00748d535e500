"""A node's Ed25519 identity: who it is, whatever its address or certificate."""

import base64
import hashlib
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from plait.config import write_private
from plait.crypto.files import private_dir, read_private
from plait.errors import AuthenticationError, ConfigError
from plait.types import NodeId

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
ENROL_CONTEXT: Final = b"plait-enrol-v1"
RENEW_CONTEXT: Final = b"plait-renew-v1"
PREFLIGHT_CONTEXT: Final = b"plait-preflight-v1"


def node_id_of(identity_key: bytes) -> NodeId:
    """ "n" and the first 80 bits of the key's sha256 in lowercase base32: a valid DNS label."""
    digest = hashlib.sha256(identity_key).digest()[:10]
    return NodeId("n" + base64.b32encode(digest).decode("ascii").lower())


def enrol_message(token_id: str, csr_der: bytes) -> bytes:
    """What an identity signs to enrol: binds the TLS key of the request to identity and token."""
    return ENROL_CONTEXT + token_id.encode("utf-8") + csr_der


def renew_message(csr_der: bytes) -> bytes:
    """What an identity signs to renew its certificate."""
    return RENEW_CONTEXT + csr_der


def preflight_message(sent_unix_ms: int) -> bytes:
    """What an identity signs to ask what a node would meet."""
    return PREFLIGHT_CONTEXT + sent_unix_ms.to_bytes(8, "big")


class NodeIdentity:
    """A node's private key and what follows from it."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_bytes = key.public_key().public_bytes_raw()
        self.node_id = node_id_of(self.public_bytes)

    def __repr__(self) -> str:
        return f"NodeIdentity({self.node_id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeIdentity) and other.public_bytes == self.public_bytes

    def __hash__(self) -> int:
        return hash(self.public_bytes)

    def sign(self, message: bytes) -> bytes:
        """64 bytes, Ed25519."""
        return self._key.sign(message)

    @classmethod
    def generate(cls) -> "NodeIdentity":
        return cls(new_ed25519())

    @classmethod
    def load(cls, path: Path) -> "NodeIdentity":
        """Raises ConfigError: missing, open to others, or not an Ed25519 key."""
        return cls(load_ed25519(path))

    @classmethod
    def load_or_generate(cls, path: Path) -> "NodeIdentity":
        """Load the key at `path`; where there is none, make one and save it."""
        if path.exists():
            return cls.load(path)
        identity = cls.generate()
        identity.save(path)
        return identity

    def save(self, path: Path) -> None:
        """Write the private key, mode 0600, in a folder of mode 0700."""
        save_private_key(path, self._key)


def new_ed25519() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def load_ed25519(path: Path) -> Ed25519PrivateKey:
    """An Ed25519 private key from a PEM file. Raises ConfigError."""
    pem = read_private(path)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} holds no private key in PEM form: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds a key of another kind, not Ed25519")
    return key


def save_private_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key as PKCS #8 PEM, mode 0600, in a folder of mode 0700."""
    private_dir(path.parent)
    write_private(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def check_identity_signature(*, identity_key: bytes, message: bytes, signature: bytes) -> NodeId:
    """The id of the key's holder, who signed `message`.

    Raises AuthenticationError(reason="bad_proof").
    """
    if len(identity_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        raise AuthenticationError(
            "the identity proof is malformed: a 32-byte Ed25519 key and a 64-byte signature "
            "are expected",
            reason="bad_proof",
        )
    try:
        Ed25519PublicKey.from_public_bytes(identity_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise AuthenticationError(
            "the identity proof does not verify: the request was not signed by the key it names",
            reason="bad_proof",
        ) from None
    return node_id_of(identity_key)
