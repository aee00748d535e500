"""Certificates: what they promise, how long, and what the authority will not sign."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from plait.clock import ManualClock
from plait.crypto.authority import (
    CertificateAuthority,
    check_issued_by,
    network_id_of,
    server_names,
)
from plait.crypto.certificates import (
    TlsPair,
    certificate_from_pem,
    certificate_names,
    common_name,
    csr_public_key,
    expires_unix_ms,
    key_from_pem,
    key_to_pem,
    make_csr,
    new_tls_key,
    renew_at_unix_ms,
)
from plait.errors import AuthenticationError, ConfigError
from plait.types import NodeId

NODE = NodeId("nabcdefghij234567")
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def ca(clock: ManualClock) -> CertificateAuthority:
    return CertificateAuthority.create(clock)


def usages(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_node_certificate_names_the_node_and_serves_both_ends(
    ca: CertificateAuthority, clock: ManualClock
) -> None:
    chain = ca.issue_node(make_csr(new_tls_key(), NodeId("nsomebodyelse")), NODE)
    leaf = check_issued_by(chain, ca.certificate_pem)
    assert common_name(leaf) == NODE
    assert certificate_names(chain) == {f"{NODE}.plait"}
    assert usages(leaf) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert expires_unix_ms(chain) == clock.unix_ms() + 7 * DAY_MS
    life_ms = 7 * DAY_MS + 3_600_000
    assert renew_at_unix_ms(chain) == clock.unix_ms() - 3_600_000 + life_ms * 2 // 3


def test_a_server_certificate_names_hosts_addresses_and_the_coordinator(
    ca: CertificateAuthority,
) -> None:
    pair = ca.issue_server(["example.org", "10.0.0.7", "::1", "10.0.0.7", "bücher.example"])
    pair.check()
    leaf = check_issued_by(pair.certificate_pem, ca.certificate_pem)
    assert certificate_names(pair.certificate_pem) == {
        "plait-coordinator",
        "example.org",
        "10.0.0.7",
        "::1",
        "xn--bcher-kva.example",
    }
    assert usages(leaf) == {ExtendedKeyUsageOID.SERVER_AUTH}, "must not pass as a node"


def test_an_authority_survives_its_pem_form(ca: CertificateAuthority, clock: ManualClock) -> None:
    again = CertificateAuthority.load(
        certificate_pem=ca.certificate_pem, key_pem=ca.key_pem(), clock=clock
    )
    assert again.network_id == ca.network_id == network_id_of(ca.certificate_der)
    chain = again.issue_node(make_csr(new_tls_key(), NODE), NODE)
    check_issued_by(chain, ca.certificate_pem)


def test_what_does_not_belong_together_is_told(
    ca: CertificateAuthority, clock: ManualClock
) -> None:
    other = CertificateAuthority.create(clock)
    with pytest.raises(ConfigError, match="belong together"):
        CertificateAuthority.load(
            certificate_pem=ca.certificate_pem, key_pem=other.key_pem(), clock=clock
        )
    chain = ca.issue_node(make_csr(new_tls_key(), NODE), NODE)
    with pytest.raises(ConfigError) as caught:
        check_issued_by(chain, other.certificate_pem)
    assert caught.value.code == "wrong_ca"
    with pytest.raises(ConfigError, match="belong together"):
        TlsPair(certificate_pem=chain, key_pem=key_to_pem(new_tls_key())).check()


def test_the_leaf_cannot_issue(ca: CertificateAuthority) -> None:
    leaf = certificate_from_pem(ca.issue_node(make_csr(new_tls_key(), NODE), NODE))
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca


def csr_of(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, size: int = 0) -> bytes:
    names = [x509.NameAttribute(NameOID.COMMON_NAME, "x" * 60)] * max(1, size // 60)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.DER)


def test_requests_that_the_authority_refuses(ca: CertificateAuthority) -> None:
    good = make_csr(new_tls_key(), NODE)
    tampered = good[:-1] + bytes([good[-1] ^ 1])
    refused = {
        "empty": b"",
        "truncated": good[:-10],
        "tampered": tampered,
        "P-384": csr_of(ec.generate_private_key(ec.SECP384R1())),
        "Ed25519": csr_of(ed25519.Ed25519PrivateKey.generate()),
        "huge": csr_of(new_tls_key(), size=6000),
    }
    for name, csr in refused.items():
        with pytest.raises(AuthenticationError) as caught:
            ca.issue_node(csr, NODE)
        assert caught.value.code == "bad_csr", name


@given(st.binary(max_size=300))
def test_random_requests_are_refused_and_nothing_else(csr: bytes) -> None:
    with pytest.raises(AuthenticationError):
        csr_public_key(csr)


@given(data=st.data())
def test_damaged_requests_are_refused_or_still_whole(data: st.DataObject) -> None:
    good = bytearray(GOOD_CSR)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    try:
        csr_public_key(bytes(good))
    except AuthenticationError as error:
        assert error.code == "bad_csr"


GOOD_CSR = make_csr(new_tls_key(), NODE)


@given(st.binary(max_size=200))
def test_random_pem_is_a_config_error(content: bytes) -> None:
    with pytest.raises(ConfigError):
        certificate_from_pem(content)
    with pytest.raises(ConfigError):
        key_from_pem(content)


def test_names_that_no_certificate_carries() -> None:
    for name in ("", "a" * 70 + ".example", "bad..name"):
        with pytest.raises(ConfigError):
            server_names([name])
