"""The papers of the telemetry: made at the start, renewed in time, private all along."""

import random
import ssl
from pathlib import Path

import pytest

from coordinator.shell.authority import Authority
from coordinator.shell.telemetry_hub import BrokerPapers, ListenerPapers, telemetry_hub
from plait.clock import ManualClock
from plait.crypto.certificates import (
    TlsPair,
    certificate_from_pem,
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
