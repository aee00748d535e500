"""SIGKILL of a real node process: within two seconds the coordinator has read its last will, from
the embedded broker and from a Mosquitto that knows everybody by certificate."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from coordinator.main import Announcement, coordinator
from plait.cli.children import Child
from tests.integration.mqtt_support import mosquitto, needs_mosquitto, shipped
from tests.kit.in_process import loopback_config
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tools import free_port
from tests.kit.warm import WarmChildren

pytestmark = pytest.mark.slow
WILL_S = 2.0
JOIN_S = 30.0
"""A node process starts, enrols and says hello to the broker."""
LOST_S = 15.0


async def test_the_embedded_broker_tells_a_killed_nodes_last_will(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    tokens = (tmp_path / "a.token",)
    config = loopback_config(tmp_path, is_mqtt_enabled=True, token_files=tokens)
    async with coordinator(config) as news:
        with node_process(tmp_path, news) as node:
            assert await seconds_to_the_will(news, node) < WILL_S


@needs_mosquitto
async def test_mosquitto_tells_a_killed_nodes_last_will(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    port, certificates = free_port(), tmp_path / "certificates"
    config = loopback_config(
        tmp_path,
        is_mqtt_enabled=True,
        mqtt_url=f"mqtts://localhost:{port}",
        broker_certs_dir=certificates,
        broker_names=("localhost",),
        token_files=(tmp_path / "a.token",),
    )
    async with coordinator(config) as news, mosquitto(tmp_path, port, shipped(certificates)):
        with node_process(tmp_path, news) as node:
            assert await seconds_to_the_will(news, node) < WILL_S


@contextlib.contextmanager
def node_process(home: Path, news: Announcement) -> Iterator[Child]:
    """`plait node join` as its owner runs it."""
    (home / "node").mkdir(mode=0o700)
    arguments = ["node", "join", news.public_address, "--token-file", str(home / "a.token")]
    arguments += ["--listen", "127.0.0.1:0", "--threads", "1", "--device", "cpu"]
    environment = {"PLAIT_HOME": str(home / "node"), "OMP_NUM_THREADS": "1"}
    with WarmChildren(home / "logs") as children:
        yield children.start("node", arguments, environment)


async def seconds_to_the_will(news: Announcement, node: Child) -> float:
    """From the kill until the coordinator counts the node as lost."""
    await presence_of_one(news, "online", limit_s=JOIN_S)
    node.check()
    node.process.kill()
    killed_s = time.perf_counter()
    await presence_of_one(news, "lost", limit_s=LOST_S)
    return time.perf_counter() - killed_s


async def presence_of_one(news: Announcement, presence: str, *, limit_s: float) -> None:
    """Until one node stands so in the coordinator's own reading of the broker."""
    headers = {"authorization": f"Bearer {news.admin_key_path.read_text()}"}
    line = f'plait_telemetry_nodes{{presence="{presence}"}} 1.0'
    async with asyncio.timeout(limit_s), httpx.AsyncClient(headers=headers) as http:
        while True:
            answer = await http.get(f"{news.http_url}/metrics")
            assert answer.status_code == 200
            if line in answer.text.splitlines():
                return
            await asyncio.sleep(0.01)
