"""A process that serves the dashboard over a core with so many nodes: port, nodes.

Nodes, plan and requests are synthetic; the core, its views and the dashboard are what runs in a
coordinator. Every second all figures move. Prints the one-time login path when it is up.
"""

import asyncio
import sys
from dataclasses import replace
from random import Random
from typing import Final

import uvicorn
from fastapi import FastAPI

from benchmarks._live_plans import MODEL, profile
from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.core import Core
from coordinator.core.state import Limits
from coordinator.core.view import HopView, NetworkView, RequestView
from coordinator.dashboard.mount import mount
from coordinator.shell.chronicle import Chronicle
from coordinator.shell.chronicle_words import of_effect, of_event
from coordinator.shell.live_views import LiveViews
from coordinator.shell.preview import Previewer
from coordinator.shell.view_cache import ViewCache
from plait.clock import SystemClock
from plait.types import HeldSpan, LayerSpan, NodeId, NodeLoad
from tests.kit.inbox import ListInbox
from tests.kit.stores import MemoryTokens
from tests.unit.dashboard.fake_sources import FakeArchive, FakeRegister, FakeRoutes
from tests.unit.dashboard.fakes import admin_and_client, request_view

NUM_REQUESTS: Final = 50
NUM_STAGES: Final = 4
KV_TOKENS: Final = 65_536
DAY_MS: Final = 86_400_000
LIMITS: Final = Limits(suspect_ms=DAY_MS, lease_ms=DAY_MS, lease_busy_ms=DAY_MS)
"""Nobody beats."""

LOAD: Final = NodeLoad(
    kv_tokens_reserved=0,
    num_requests=0,
    stage_ms=4.0,
    tokens_total=0,
    sent_bytes_total=0,
    frames_dropped_total=0,
    queue_tokens=0,
)


class Network:
    """A core that was told of `num_nodes` nodes, which serve, and of requests that run."""

    def __init__(self, num_nodes: int, clock: SystemClock) -> None:
        self.core = Core((MODEL,), LIMITS, Random(1), network_id="simulated")
        self.clock = clock
        self.chronicle = Chronicle(clock)
        self.num_steps = 0
        for index in range(num_nodes):
            self._join(index)  # with layers from before: a plan of so many takes minutes
        self._measure(num_nodes)
        self._cached = ViewCache(self.core, clock)
        self._requests = tuple(_request(index, num_nodes) for index in range(NUM_REQUESTS))

    def step(self) -> None:
        """Everybody has computed for a second."""
        self.num_steps += 1
        for node in self.core.state.nodes.values():
            load = node.load if node.load is not None else LOAD
            node.load = replace(
                load, tokens_total=load.tokens_total + 20, sent_bytes_total=self.num_steps * 9_000
            )

    def progress(self) -> dict[str, int]:
        """Tokens of open requests, by request."""
        return {f"request-{index:04d}": 20 * self.num_steps for index in range(NUM_REQUESTS)}

    def tell(self, event: ev.Event) -> list[fx.Effect]:
        effects = self.core.handle(event, self.clock.monotonic_ms())
        self.chronicle.note(of_event(event))
        for effect in effects:
            if isinstance(effect, fx.AssignSpan):
                self.chronicle.note(of_effect(effect))
        return effects

    def _join(self, index: int) -> None:
        node = profile(index)
        self.tell(
            ev.NodeAttached(
                node_id=node.node_id,
                incarnation=1,
                display_name=node.display_name,
                addresses=("10.0.0.1:1",),
                held=_held(index),
            )
        )
        self.tell(ev.GatewayLinkChanged(node_id=node.node_id, incarnation=1, is_up=True))
        self.tell(ev.NodeProfiled(profile=node, incarnation=1))

    def _measure(self, num_nodes: int) -> None:
        """Eight hops from everybody."""
        for index in range(num_nodes):
            for step in range(1, 9):
                self.tell(
                    ev.NeighbourMeasured(
                        node_id=NodeId(f"n{index:04d}"),
                        neighbour_id=NodeId(f"n{(index + step * 37) % num_nodes:04d}"),
                        rtt_ms=5.0 + step,
                        bytes_per_s=4e6,
                        is_reachable=True,
                    )
                )

    def view(self) -> NetworkView:
        """The core's, with requests that run through its nodes."""
        return replace(self._cached.view(), requests=self._requests)


def _request(index: int, num_nodes: int) -> RequestView:
    """Choosing chains is no part of what is measured: these run where they are put."""
    at = index * NUM_STAGES % max(1, num_nodes - NUM_STAGES)
    route = tuple(
        HopView(node_id=f"n{at + stage:04d}", span=_span(at + stage)) for stage in range(NUM_STAGES)
    )
    return replace(request_view(index), request_id=f"request-{index:04d}", route=route)


def _span(index: int) -> tuple[int, int]:
    length = MODEL.num_layers // NUM_STAGES
    start = index % NUM_STAGES * length
    return start, start + length


def _held(index: int) -> HeldSpan:
    return HeldSpan(
        model_id=MODEL.model_id,
        span=LayerSpan(*_span(index)),
        allocation_epoch=1,
        digest="0" * 64,
        weight_bytes=3 << 30,
        read_bytes=3 << 30,
        kv_tokens_max=KV_TOKENS,
    )


def main() -> None:
    port, num_nodes = int(sys.argv[1]), int(sys.argv[2])
    app, clock, inbox = FastAPI(), SystemClock(), ListInbox()
    network = Network(num_nodes, clock)
    dashboard = mount(
        app,
        views=LiveViews(network, network.progress),
        telemetry=None,
        keys=admin_and_client(),
        tokens=MemoryTokens(),
        register=FakeRegister(),
        archive=FakeArchive(10_000),
        routes=FakeRoutes(),
        chronicle=network.chronicle,
        previewer=Previewer(network.core, inbox),
        inbox=inbox,
        clock=clock,
        join_address="plait.example.org:7420",
        specs=(MODEL,),
    )
    print(dashboard.new_login_path(), flush=True)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on")
    )
    asyncio.run(_serve(server, network))


async def _serve(server: uvicorn.Server, network: Network) -> None:
    async def move() -> None:
        while True:
            network.step()
            await asyncio.sleep(1.0)

    moving = asyncio.create_task(move())
    await server.serve()
    moving.cancel()


if __name__ == "__main__":
    main()
