"""A gateway on loopback with a scripted network behind it, and clients for it."""

import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from openai import AsyncOpenAI

from coordinator.gateway.gateway import Gateway, GatewayConfig
from coordinator.gateway.generate import GenerateLimits
from coordinator.gateway.limits import DoorLimits
from coordinator.shell.servers import bind, http_server
from plait.clock import SystemClock
from tests.kit.scripted_network import (
    API_KEY,
    ByteTokenizer,
    FakeKeys,
    FakeViews,
    ScriptedNetwork,
    tiny_spec,
)


@dataclass
class GatewayRig:
    """Everything a test may touch. `url` is the HTTP door's root where it is served."""

    gateway: Gateway
    network: ScriptedNetwork
    views: FakeViews
    url: str = ""

    def openai(self, *, key: str = API_KEY) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=10.0)


def make_gateway(
    network: ScriptedNetwork,
    *,
    door: DoorLimits | None = None,
    generate: GenerateLimits | None = None,
    context_tokens_max: int = 4096,
) -> GatewayRig:
    """A gateway without doors; call inside a running loop."""
    spec = tiny_spec(context_tokens_max=context_tokens_max)
    views = FakeViews(spec)
    counter = itertools.count(1)
    gateway = Gateway(
        config=GatewayConfig(
            network_id="net",
            door=door if door is not None else DoorLimits(),
            generate=generate if generate is not None else GenerateLimits(),
        ),
        models=[spec],
        tokenizers={spec.model_id: ByteTokenizer()},
        inbox=network,
        views=views,
        keys=FakeKeys(),
        sign=lambda payload: b"signed" + payload[:4],
        clock=SystemClock(),
        new_id=lambda: f"id{next(counter)}",
        rng=random.Random(7),
    )
    network.relay = gateway.relay
    return GatewayRig(gateway, network, views)


@contextlib.asynccontextmanager
async def open_gateway(
    network: ScriptedNetwork,
    *,
    door: DoorLimits | None = None,
    generate: GenerateLimits | None = None,
    context_tokens_max: int = 4096,
) -> AsyncIterator[GatewayRig]:
    """A gateway whose HTTP door is served by a real uvicorn on loopback."""
    rig = make_gateway(network, door=door, generate=generate, context_tokens_max=context_tokens_max)
    network.attach()
    bound = bind("127.0.0.1", 0, flag="--http")
    rig.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        async with http_server(rig.gateway.http_app(), bound):
            yield rig
    finally:
        await network.stop()
        rig.gateway.close()
