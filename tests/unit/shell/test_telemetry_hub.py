"""The papers of the telemetry: made at the start, renewed in time, private all along."""

import random
import ssl
from pathlib import Path

import pytest

from coordinator.shell.authority import Authority
from coordinator.shell.telemetry_hub import (
    BrokerPapers,
    ListenerPapers,
    telemetry_hub,
    write_broker_certificates,
)
from plait.clock import ManualClock
from plait.crypto.certificates import (
    TlsPair,
    certificate_from_pem,
    certificate_names,
    common_name,
)
from plait.errors import ConfigError

DAY_MS = 86_400_000


def test_the_listeners_certificate_is_renewed_at_two_thirds_of_its_life(tmp_path: Path) -> None:
    clock = ManualClock()
    papers = ListenerPapers(Authority.open(tmp_path / "keys", clock), tmp_path, clock)
    first = papers.certificate_path.read_bytes()
    assert common_name(certificate_from_pem(first)) == "coordinator"
    clock.advance(4 * DAY_MS)
    papers.refresh()
    assert papers.certificate_path.read_bytes() == first
    clock.advance(DAY_MS)
    papers.refresh()
    second = papers.certificate_path.read_bytes()
    assert second != first
    TlsPair(certificate_pem=second, key_pem=papers.key_path.read_bytes()).check()
    assert papers.key_path.stat().st_mode & 0o777 == 0o600


def test_the_brokers_certificate_follows_the_coordinators(tmp_path: Path) -> None:
    clock = ManualClock()
    authority = Authority.open(tmp_path / "keys", clock)
    papers = BrokerPapers(authority, tmp_path)
    first = (tmp_path / "broker.pem").read_bytes()
    papers.refresh()
    assert (tmp_path / "broker.pem").read_bytes() == first
    clock.advance(61 * DAY_MS)
    papers.refresh()
    assert (tmp_path / "broker.pem").read_bytes() == authority.server().certificate_pem != first
    assert papers.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_an_operators_broker_gets_papers_for_its_own_names(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "keys", ManualClock())
    folder = tmp_path / "broker"
    write_broker_certificates(authority, folder, ("mosquitto",))
    assert "mosquitto" in certificate_names((folder / "broker.pem").read_bytes())
    assert (folder / "broker.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--broker-certs"):
        write_broker_certificates(authority, tmp_path / "file" / "x", ("mosquitto",))


@pytest.mark.parametrize("url", ["mqtts://:8883", "http://broker", "mqtt://broker:port"])
async def test_an_address_that_names_no_broker_is_refused(tmp_path: Path, url: str) -> None:
    clock = ManualClock()
    authority = Authority.open(tmp_path / "keys", clock)
    with pytest.raises(ConfigError):
        async with telemetry_hub(
            authority=authority,
            folder=tmp_path,
            clock=clock,
            rng=random.Random(1),
            url=url,
            listen=None,
        ):
            pass
