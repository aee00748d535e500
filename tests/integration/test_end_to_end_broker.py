"""A real network whose broker dies in mid-stream: nobody who asks a question notices."""

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plait.cli.local_network import LocalNetwork
from tests.integration.mqtt_support import MOSQUITTO, needs_mosquitto
from tests.kit.metrics import figures
from tests.kit.network import client_of, serving_network
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tools import free_port
from tests.kit.wait import until_sync

pytestmark = [pytest.mark.slow, needs_mosquitto]
PROMPT = list(range(40, 72))
NUM_TOKENS = 400


@contextmanager
def broker(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A real Mosquitto of the operator's, on loopback."""
    assert MOSQUITTO is not None
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n")
    process = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def test_a_stream_is_unchanged_when_the_broker_dies(tmp_path: Path) -> None:
    port = free_port()
    model = tmp_path / "tiny"
    spec = write_tiny_model(model)
    telemetry = ("--mqtt", f"mqtt://127.0.0.1:{port}")
    with (
        broker(tmp_path, port) as mosquitto,
        serving_network(tmp_path, str(model), spec, num_stages=2, telemetry=telemetry) as network,
        client_of(network) as client,
    ):
        until_sync(lambda: num_messages(network) > 2, what="telemetry at the coordinator")
        undisturbed = client.generate(
            PROMPT, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True
        )
        stream = client.stream(PROMPT, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        drawn: list[int] = []
        for delta in stream:
            drawn.extend(delta.token_ids)
            if mosquitto.poll() is None and len(drawn) >= NUM_TOKENS // 10:
                mosquitto.kill()
                mosquitto.wait(10)
                assert len(drawn) < NUM_TOKENS
        assert mosquitto.poll() is not None
        assert drawn == list(undisturbed.token_ids)
        assert stream.result.num_attempts == 1
        again = client.generate(PROMPT, max_tokens=8, temperature=0.0, ignore_eos=True)
        assert again.token_ids == undisturbed.token_ids[:8]
        assert all(node.state == "serving" for node in network.view().nodes)


def num_messages(network: LocalNetwork) -> float:
    """Telemetry messages that the coordinator has counted."""
    request = urllib.request.Request(
        f"{network.profile.http_url}/metrics",
        headers={"authorization": f"Bearer {network.profile.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return sum(figures(answer.read().decode(), "plait_telemetry_messages_total"))
