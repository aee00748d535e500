"""A node's weights over the network, wired: asking neighbours and giving to them."""

import asyncio
from collections.abc import Callable
from typing import Final

from grpc import aio

from node.agent.weight_counts import WeightCounts
from node.agent.weights_desk import WeightsDesk
from node.agent.weights_means import SupplyMeans
from node.agent.weights_supply import WeightsSupply
from node.config import NodeConfig
from node.transport.links import LinkTable
from node.transport.pace import Pace
from node.transport.streams import ChannelFactory
from node.transport.weights_client import ChunkClient
from node.transport.weights_service import WeightsGiver
from plait.clock import Clock
from plait.config import models_dir
from plait.models.gate import Gate
from plait.models.shelf import Shelf
from plait.types import LayerSpan
from plait.wire.v1 import control_pb2

FETCHING: Final = "fetching"


class NodeWeights:
    """Made on the loop, before anything is fetched; from then on `gate` knows of neighbours."""

    def __init__(
        self,
        config: NodeConfig,
        gate: Gate,
        clock: Clock,
        to_coordinator: Callable[[], aio.Channel],
        to_node: ChannelFactory,
    ) -> None:
        self.counts = WeightCounts()
        self._shelf = Shelf(models_dir())
        self._serves = config.owner.limits.serve_weights
        self._desk = WeightsDesk(to_coordinator)
        self._client = ChunkClient(to_node)
        self._supply = WeightsSupply(
            SupplyMeans(
                desk=self._desk,
                neighbours=self._client,
                shelf=self._shelf,
                counts=self.counts,
                gate=gate,
                clock=clock,
                is_offline=config.is_offline,
                serves=self._serves,
            )
        )
        gate.supply = self._supply
        self._welcomes: asyncio.Queue[tuple[str, ...]] = asyncio.Queue(maxsize=1)

    def giver(self, pace: Pace, links: LinkTable) -> WeightsGiver:
        """What answers neighbours: behind the frames of `links`, at the rate of `pace`."""
        return WeightsGiver(
            self._shelf, self.counts, pace, serves=self._serves, is_busy=links.is_busy
        )

    def welcomed(self, welcome: control_pb2.Welcome) -> None:
        """What is here of these models will be told."""
        if self._welcomes.full():
            self._welcomes.get_nowait()
        digests = [offer.source.digest for offer in welcome.models]
        self._welcomes.put_nowait(tuple(digest for digest in digests if digest))

    def explain(self, phase: str, span: LayerSpan) -> str:
        """A load's phase, with where its bytes come from."""
        return (self._supply.says(span) or phase) if phase == FETCHING else phase

    def close(self) -> None:
        """The node leaves: whoever waits for weights hears of it."""
        self._supply.close()

    async def run(self) -> None:
        """Tell the coordinator of each welcome what is here, until cancelled."""
        try:
            while True:
                await self._supply.announce(await self._welcomes.get())
        finally:
            self.close()
            await self._client.close()
            await self._desk.close()
