"""The coordinator's keys on disk."""

from pathlib import Path

import pytest

from coordinator.shell.authority import Authority
from plait.clock import ManualClock
from plait.crypto.authority import check_issued_by
from plait.crypto.certificates import certificate_names
from plait.errors import ConfigError

DAY_MS = 86_400_000


def opened(folder: Path, clock: ManualClock, *names: str) -> Authority:
    return Authority.open(folder, clock, names=names or ("localhost",))


def test_keys_are_made_once_and_private(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "coordinator"
    first, second = opened(folder, clock), opened(folder, clock)
    assert first.network_id == second.network_id
    assert first.tickets.public_bytes == second.tickets.public_bytes
    assert first.server() == second.server()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_the_server_certificate_is_renewed_in_time(tmp_path: Path, clock: ManualClock) -> None:
    authority = opened(tmp_path, clock)
    first = authority.server()
    clock.advance(59 * DAY_MS)
    assert authority.server() == first
    clock.advance(2 * DAY_MS)
    renewed = authority.server()
    assert renewed.certificate_pem != first.certificate_pem
    check_issued_by(renewed.certificate_pem, authority.ca_pem)
    assert opened(tmp_path, clock).server() == renewed


def test_new_names_need_a_new_certificate(tmp_path: Path, clock: ManualClock) -> None:
    opened(tmp_path, clock, "a.example")
    pair = opened(tmp_path, clock, "b.example", "10.0.0.1").server()
    assert certificate_names(pair.certificate_pem) == {
        "plait-coordinator",
        "b.example",
        "10.0.0.1",
    }


def test_a_damaged_server_certificate_is_replaced(tmp_path: Path, clock: ManualClock) -> None:
    opened(tmp_path, clock)
    (tmp_path / "server.crt").write_bytes(b"damaged")
    opened(tmp_path, clock).server().check()


@pytest.mark.parametrize("lost", ["ca.key", "ca.crt"])
def test_half_an_authority_is_not_replaced(tmp_path: Path, clock: ManualClock, lost: str) -> None:
    opened(tmp_path, clock)
    (tmp_path / lost).unlink()
    with pytest.raises(ConfigError, match="restore it") as caught:
        opened(tmp_path, clock)
    assert caught.value.code == "authority_incomplete"


@pytest.mark.parametrize("damaged", ["ca.key", "ca.crt"])
def test_a_damaged_authority_is_told(tmp_path: Path, clock: ManualClock, damaged: str) -> None:
    opened(tmp_path, clock)
    (tmp_path / damaged).write_bytes(b"damaged")
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, clock)
    assert caught.value.code == "authority_corrupt"


def test_an_authority_key_that_others_can_read(tmp_path: Path, clock: ManualClock) -> None:
    opened(tmp_path, clock)
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, clock)
    assert caught.value.code == "key_file_open"


def test_an_authority_past_its_end(tmp_path: Path, clock: ManualClock) -> None:
    opened(tmp_path, clock)
    clock.advance(3653 * DAY_MS)
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, clock)
    assert caught.value.code == "authority_expired"
