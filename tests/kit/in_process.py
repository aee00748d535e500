"""A whole network in this process, so that a test can ask its parts: a coordinator and nodes with
real engines, over real gRPC with mutual TLS, tickets and keys."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from coordinator.config import CoordinatorConfig, Listen
from coordinator.main import Announcement, coordinator
from node.agent.joining import join
from node.agent.weights import open_weights
from node.config import NodeConfig
from node.core.effects import Exit
from node.engine.device import pick_device
from node.engine.drafting import Drafter
from node.engine.drafting_model import load_draft_model
from node.engine.host import ThreadedEngineHost
from node.main import Node
from node.owner.settings import read_settings
from plait.clock import SystemClock
from plait.sdk import AsyncClient
from plait.types import DType
from tests.kit.memory import cap_for_stages
from tests.kit.proxy import Proxy
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tools import free_port

LOOPBACK = "127.0.0.1"
SERVE_S = 120.0


class BreakableClock:
    """Nanoseconds, until it is broken: who asks then fails."""

    def __init__(self) -> None:
        self.is_broken = False

    def __call__(self) -> int:
        if self.is_broken:
            raise RuntimeError("the clock is broken")
        return time.perf_counter_ns()


@dataclass(slots=True)
class SmallNode:
    """A node and what others see of it: they dial `proxy`."""

    name: str
    engine: ThreadedEngineHost
    proxy: Proxy
    node: Node
    task: asyncio.Task[Exit]
    drafter: Drafter | None = None
    drafter_clock: BreakableClock = field(default_factory=BreakableClock)

    async def kill(self) -> None:
        """All its streams end at once, and nobody is told."""
        self.task.cancel()
        await asyncio.wait([self.task])

    @property
    def kv_tokens_reserved(self) -> int:
        """The engine's own count, now."""
        return self.engine.stats().kv_tokens_reserved


@dataclass(slots=True)
class SmallNetwork:
    """A coordinator that serves, and its nodes."""

    home: Path
    news: Announcement
    wire_dtype: DType
    nodes: dict[str, SmallNode] = field(default_factory=dict)

    @property
    def ca_path(self) -> Path:
        return self.home / "state" / "authority" / "ca.crt"

    @property
    def api_key(self) -> str:
        assert self.news.client_key is not None
        return self.news.client_key

    def client(self) -> AsyncClient:
        return AsyncClient(self.news.public_address, self.api_key, self.ca_path.read_bytes())

    async def metrics(self) -> str:
        """What the coordinator tells its operator's Prometheus."""
        headers = {"authorization": f"Bearer {self.news.admin_key_path.read_text()}"}
        async with httpx.AsyncClient(headers=headers) as http:
            return (await http.get(f"{self.news.http_url}/metrics")).text


def loopback_config(home: Path, **changes: object) -> CoordinatorConfig:
    """A coordinator of the model in `home / "tiny"` on free ports, without the extras."""
    settings: dict[str, object] = {
        "models": (str(home / "tiny"),),
        "public": Listen(LOOPBACK, 0, "--listen"),
        "node": Listen(LOOPBACK, 0, "--node-listen"),
        "http": Listen(LOOPBACK, 0, "--http-listen"),
        "mqtt": Listen(LOOPBACK, 0, "--mqtt-listen"),
        "state_dir": home / "state",
        "is_mqtt_enabled": False,
        "is_profile_written": False,
        "is_dashboard_enabled": False,
    }
    return CoordinatorConfig(**(settings | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def small_network(
    home: Path,
    *,
    num_nodes: int,
    num_stages: int | None = None,
    context_tokens: int = 512,
    wire_dtype: DType = DType.FLOAT32,
    sets: tuple[str, ...] = (),
    times_wide: int = 1,
    draft_model: str = "",
    has_broker: bool = False,
) -> AsyncIterator[SmallNetwork]:
    """The tiny model over `num_nodes` nodes of which fewer cannot hold it, or of which so many as
    there are `num_stages` can, each behind a proxy.
    `sets` are the owners' limits; `draft_model` is all nodes', a folder in `home`; `has_broker`:
    telemetry goes over the coordinator's own."""
    spec = write_tiny_model(home / "tiny", context_tokens=context_tokens, times_wide=times_wide)
    names = [f"node {number}" for number in range(1, num_nodes + 1)]
    config = loopback_config(
        home,
        nodes_min=num_nodes,
        kv_tokens_min=context_tokens,
        plan_wait_ms=60_000,
        wire_dtype=wire_dtype.value,
        is_mqtt_enabled=has_broker,
        token_files=tuple(home / "join" / f"{name}.token" for name in names),
    )
    cap_bytes = cap_for_stages(spec, num_stages or num_nodes, context_tokens)
    async with AsyncExitStack() as stack:
        network = SmallNetwork(
            home, await stack.enter_async_context(coordinator(config)), wire_dtype
        )
        for name in names:
            network.nodes[name] = await stack.enter_async_context(
                _small_node(network, name, cap_bytes, sets, draft_model)
            )
        await until_ready(network.news)
        yield network


async def until_ready(news: Announcement) -> None:
    """Until the coordinator says that it can serve."""
    async with asyncio.timeout(SERVE_S), httpx.AsyncClient() as http:
        while (await http.get(f"{news.http_url}/ready")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def _small_node(
    network: SmallNetwork,
    name: str,
    cap_bytes: int | None,
    sets: tuple[str, ...],
    draft_model: str,
) -> AsyncIterator[SmallNode]:
    port = free_port()
    async with Proxy(port) as proxy:
        config = NodeConfig(
            home=network.home / name,
            coordinator=network.news.public_address,
            token_file=network.home / "join" / f"{name}.token",
            display_name=name,
            listen=f"{LOOPBACK}:{port}",
            advertise=(proxy.address,),
            memory_bytes=cap_bytes,
            owner=read_settings(network.home / "none.toml", environ={}, flags=sets),
        )
        credentials = await join(config)
        device = pick_device("cpu", DType.FLOAT32)
        engine = ThreadedEngineHost(device, open_weights, memory_bytes=cap_bytes, num_threads=1)
        drafter, drafter_clock = None, BreakableClock()
        if draft_model:
            folder = str(network.home / draft_model)
            model = load_draft_model(folder, device, open_weights, memory_bytes=None)
            drafter = Drafter(model, num_threads=1, now_ns=drafter_clock)
        node = Node(config, credentials, engine, SystemClock(), lambda _: None, drafter=drafter)
        task = asyncio.create_task(node.run(), name=name)
        try:
            yield SmallNode(name, engine, proxy, node, task, drafter, drafter_clock)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
