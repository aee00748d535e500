"""What a simulated network does: who holds what, and which chain serves whom."""

from typing import Protocol

from plait.types import LayerSpan
from scheduler.simulation.state import Hop, Request, World


class Strategy(Protocol):
    """Decides; the engine acts."""

    def plan(self, world: World) -> dict[int, LayerSpan]:
        """Who holds what from now on, by place in the pool. Asked at the start and when a node
        is missed or comes back."""

    def serving_changed(self, world: World) -> None:
        """Other nodes serve than before (`world.spans()`)."""

    def route(self, world: World, request: Request) -> tuple[Hop, ...] | None:
        """A chain with room, or None: the request waits."""

    def reserved(self, world: World, route: tuple[Hop, ...]) -> None:
        """KV was reserved along `route`."""

    def released(self, world: World, route: tuple[Hop, ...]) -> None:
        """KV was given back along `route`."""
