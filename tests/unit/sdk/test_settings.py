"""Where the SDK finds a network: arguments, environment, profile; and what it says else."""

from pathlib import Path

import pytest

from plait.config import ClientProfile
from plait.errors import ConfigError
from plait.sdk.settings import resolve

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("PLAIT_ADDRESS", "PLAIT_API_KEY", "PLAIT_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))
    return tmp_path


def test_arguments_beat_the_environment_and_it_beats_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ClientProfile(address="profile:1", ca_pem=PEM, api_key="profile-key").save()
    assert resolve(None, None, None).address == "profile:1"
    monkeypatch.setenv("PLAIT_ADDRESS", "environment:2")
    mixed = resolve(None, "own-key", None)
    assert (mixed.address, mixed.api_key) == ("environment:2", "own-key")
    assert mixed.ca_pem == PEM.encode()
    assert resolve("argument:3", None, None).address == "argument:3"


def test_a_ca_may_be_pem_bytes_text_or_a_path(clean_environment: Path) -> None:
    path = clean_environment / "ca.pem"
    path.write_text(PEM)
    for ca in (PEM, PEM.encode(), path, str(path)):
        assert resolve("h:1", "key", ca).ca_pem == PEM.encode()


@pytest.mark.parametrize(
    ("address", "key", "ca", "match"),
    [
        ("nowhere", "key", PEM, "host:port"),
        ("h:", "key", PEM, "host:port"),
        ("h:99999", "key", PEM, "host:port"),
        (":1", "key", PEM, "host:port"),
        ("h:1", "k\ney", PEM, "API key"),
        ("h:1", "kéy", PEM, "API key"),
        ("h:1", "key", "/no/such/file", "cannot be read"),
        ("h:1", "key", b"not pem", "PEM"),
        (None, None, None, "no client profile"),
    ],
)
def test_what_cannot_work_says_what_helps(
    address: str | None, key: str | None, ca: str | bytes | None, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        resolve(address, key, ca)


def test_settings_do_not_show_their_key() -> None:
    assert "secret" not in repr(resolve("h:1", "secret-key", PEM))
