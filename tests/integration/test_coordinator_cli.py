"""`plait coordinator` as an operator runs it: a banner, a profile, and errors in one line."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from plait.config import ClientProfile
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until_sync
from tests.kit.warm import WarmChildren

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "plait.cli.main", "coordinator"]
PORTS = [
    word
    for flag in ("--listen", "--node-listen", "--http-listen", "--mqtt-listen")
    for word in (flag, "127.0.0.1:0")
]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PLAIT_HOME": str(home), "COLUMNS": "120"}


def fail(home: Path, *arguments: str) -> str:
    with WarmChildren(home / "logs") as children:
        variables = {"PLAIT_HOME": str(home), "COLUMNS": "120"}
        child = children.start("coordinator", ["coordinator", *arguments], variables)
        assert child.process.wait(60) != 0
        said = child.log_path.read_text()
        child.log_path.unlink()
    assert "Traceback" not in said
    return " ".join(said.split())


def test_a_start_prints_where_everything_is_and_a_stop_is_orderly(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    shown = tmp_path / "shown.txt"
    with shown.open("wb") as err:
        process = subprocess.Popen(
            [*COMMAND, "--model", str(tmp_path / "tiny"), *PORTS],
            env=environment(tmp_path / "home"),
            stderr=err,
        )
    try:
        until_sync(
            lambda: "curl" in shown.read_text() or process.poll() is not None,
            timeout_s=60,
            what="the banner",
        )
        profile = ClientProfile.load(tmp_path / "home" / "client.json")
        text = shown.read_text()
        assert profile.address in text and profile.http_url in text
        assert "plait node join" in text and "/dashboard/link/" in text
        assert profile.api_key not in text, "the operator's key is in its file, not in logs"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_mistakes_are_named_in_a_line(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    model = ("--model", str(tmp_path / "tiny"))
    assert "no model" in fail(tmp_path, *PORTS)
    assert "Known by name" in fail(tmp_path, "--model", "nonsense", *PORTS)
    assert "--listen" in fail(tmp_path, *model, "--listen", "host:port")
    assert "--log-level" in fail(tmp_path, *model, "--log-level", "loud")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = fail(tmp_path, *model, *PORTS, "--http-listen", f"127.0.0.1:{port}")
    assert f"port {port}" in text and "--http-listen" in text
