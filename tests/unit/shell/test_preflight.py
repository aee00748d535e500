"""What an operator typed is refused by name before anything is written."""

import socket
from pathlib import Path

import pytest

from coordinator.config import CoordinatorConfig, Listen
from coordinator.preflight import check_config
from plait.errors import ConfigError


def config(home: Path, **changes: object) -> CoordinatorConfig:
    doors = {
        name: Listen("127.0.0.1", 0, flag)
        for name, flag in (
            ("public", "--listen"),
            ("node", "--node-listen"),
            ("http", "--http-listen"),
            ("mqtt", "--mqtt-listen"),
        )
    }
    own = {"models": ("m",), "state_dir": home / "state", **doors}
    return CoordinatorConfig(**(own | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"public": Listen("no-such-host.invalid", 0, "--listen")}, "--listen: .*no-such-host"),
        (
            {"node": Listen("203.0.113.7", 0, "--node-listen")},
            "--node-listen: 203.* not an address",
        ),
        ({"mqtt_url": "mqtts://:27422"}, "--mqtt: mqtts://HOST:PORT"),
        ({"mqtt_url": "mqtt://u:secret@:1", "is_mqtt_enabled": False}, "--mqtt: mqtt://HOST:PORT"),
        ({"mqtt_url": "http://broker"}, "--mqtt: .*wrong"),
        ({"database_url": "mysql://u:secret@h/db"}, "--database: .*mysql"),
        ({"database_url": "://"}, "--database: .*cannot be read"),
        ({"token_files": (Path("/"),)}, "--token-file: / is a folder"),
        ({"state_dir": Path(__file__)}, "--state-dir: .* is a file"),
        ({"broker_certs_dir": Path(__file__), "broker_names": ("b",)}, "--broker-certs: .* a file"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        check_config(config(tmp_path, **changes))
    assert "secret" not in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_each_door_is_tried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("public", "node", "http", "mqtt"):
            door = Listen("127.0.0.1", port, f"--{name}")
            with pytest.raises(ConfigError, match=f"port {port} .* in use .* --{name}"):
                check_config(config(tmp_path, **{name: door}))
        door = Listen("127.0.0.1", port, "--mqtt-listen")
        check_config(config(tmp_path, mqtt=door, mqtt_url="mqtt://broker:1"))
    check_config(config(tmp_path))
    assert list(tmp_path.iterdir()) == []
