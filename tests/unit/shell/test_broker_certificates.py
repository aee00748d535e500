"""An operator's broker gets a certificate for its own names, and keeps it while it is fit."""

from pathlib import Path

import pytest

from coordinator.shell.broker_certificates import write_broker_certificates
from plait.clock import ManualClock
from plait.crypto.authority import SERVER_DAYS, CertificateAuthority, check_issued_by
from plait.crypto.certificates import (
    COORDINATOR_NAME,
    TlsPair,
    certificate_from_pem,
    certificate_names,
    common_name,
)
from plait.errors import ConfigError

DAY_MS = 24 * 3600 * 1000
CLOCK = ManualClock()
CA = CertificateAuthority.create(CLOCK)


def written(folder: Path, ca: CertificateAuthority = CA, *names: str, days: int = 0) -> bytes:
    """The certificate in the folder after a start that many days later."""
    clock = ManualClock()
    clock.advance(days * DAY_MS)
    write_broker_certificates(ca, folder, names or ("mosquitto", "10.0.0.7"), clock)
    return (folder / "broker.pem").read_bytes()


def test_it_is_for_the_brokers_names_and_nobody_else(tmp_path: Path) -> None:
    certificate_pem = written(tmp_path / "certs")
    key_path = tmp_path / "certs" / "broker.key"
    TlsPair(certificate_pem=certificate_pem, key_pem=key_path.read_bytes()).check()
    assert key_path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "certs" / "ca.pem").read_bytes() == CA.certificate_pem
    check_issued_by(certificate_pem, CA.certificate_pem)
    assert certificate_names(certificate_pem) == {"mosquitto", "10.0.0.7"}
    # Whoever runs the broker must not be able to pose as the coordinator, to nodes or to clients.
    assert COORDINATOR_NAME not in certificate_names(certificate_pem)
    assert common_name(certificate_from_pem(certificate_pem)) not in ("coordinator", "")


def test_it_stays_while_it_is_fit_and_is_renewed_in_time(tmp_path: Path) -> None:
    first = written(tmp_path)
    assert written(tmp_path, days=SERVER_DAYS * 2 // 3 - 1) == first
    assert written(tmp_path, days=SERVER_DAYS * 2 // 3 + 1) != first


@pytest.mark.parametrize("damage", ["key open", "key lost", "key of another", "cut", "not PEM"])
def test_what_is_damaged_is_replaced(tmp_path: Path, damage: str) -> None:
    first, key_path = written(tmp_path), tmp_path / "broker.key"
    if damage == "key open":
        key_path.chmod(0o644)
    elif damage == "key lost":
        key_path.unlink()
    elif damage == "key of another":
        key_path.write_bytes(CA.issue_broker(["x"]).key_pem)
    else:
        cut = first[: len(first) // 2] if damage == "cut" else b"nonsense"
        (tmp_path / "broker.pem").write_bytes(cut)
    second = written(tmp_path)
    assert second != first
    TlsPair(certificate_pem=second, key_pem=key_path.read_bytes()).check()
    assert key_path.stat().st_mode & 0o777 == 0o600


def test_other_names_and_another_network_need_another_one(tmp_path: Path) -> None:
    first = written(tmp_path)
    second = written(tmp_path, CA, "broker.example.org")
    assert certificate_names(second) == {"broker.example.org"} and second != first
    other = CertificateAuthority.create(CLOCK)
    third = written(tmp_path, other, "broker.example.org")
    check_issued_by(third, other.certificate_pem)
    assert (tmp_path / "ca.pem").read_bytes() == other.certificate_pem


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--broker-certs"):
        written(tmp_path / "file" / "certs")
