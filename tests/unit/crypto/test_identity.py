"""Who a node is, and where its key may lie."""

import base64
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.crypto.identity import (
    NodeIdentity,
    check_identity_signature,
    enrol_message,
    node_id_of,
    renew_message,
)
from plait.errors import AuthenticationError, ConfigError


def test_a_node_id_is_n_and_sixteen_base32_characters_of_the_keys_hash() -> None:
    key = bytes(range(32))
    expected = base64.b32encode(hashlib.sha256(key).digest())[:16].decode().lower()
    assert node_id_of(key) == "n" + expected
    assert len(node_id_of(key)) == 17


def test_an_identity_survives_the_disk_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity.pem"
    identity = NodeIdentity.load_or_generate(path)
    assert NodeIdentity.load_or_generate(path) == identity
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert identity != NodeIdentity.generate()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.pem"
    NodeIdentity.generate().save(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        NodeIdentity.load(path)
    assert caught.value.code == "key_file_open"


@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_damaged_key_file_is_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"identity\.pem"):
        NodeIdentity.load(path)


def test_a_missing_key_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        NodeIdentity.load(tmp_path / "none.pem")
    assert caught.value.code == "key_file_missing"


def test_a_proof_holds_for_its_key_token_and_request_only() -> None:
    identity, other = NodeIdentity.generate(), NodeIdentity.generate()
    message = enrol_message("0011223344556677", b"csr")
    signature = identity.sign(message)
    proof = {"identity_key": identity.public_bytes, "message": message, "signature": signature}
    assert check_identity_signature(**proof) == identity.node_id
    for change in (
        {"identity_key": other.public_bytes},
        {"message": enrol_message("0011223344556677", b"another csr")},
        {"message": enrol_message("7766554433221100", b"csr")},
        {"message": renew_message(b"csr")},
        {"signature": other.sign(message)},
    ):
        with pytest.raises(AuthenticationError) as caught:
            check_identity_signature(**{**proof, **change})
        assert caught.value.code == "bad_proof"


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_random_proofs_are_refused_and_nothing_else(
    key: bytes, message: bytes, signature: bytes
) -> None:
    with pytest.raises(AuthenticationError):
        check_identity_signature(identity_key=key, message=message, signature=signature)


def test_a_printed_identity_shows_no_key() -> None:
    identity = NodeIdentity.generate()
    assert repr(identity) == f"NodeIdentity({identity.node_id})"
