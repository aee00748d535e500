"""What a simulated network does: who holds what, and which chain serves whom."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plait.types import LayerSpan

if TYPE_CHECKING:
    from scheduler.simulation.engine import Engine, Request


Pipeline = tuple[tuple[int, LayerSpan], ...]
"""Machines by their place in the pool, and what each runs, in order."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A stage of a route: the machine's place in the pool, how many layers it runs."""

    node: int
    num_layers: int
    is_last: bool


class Strategy(Protocol):
    """Decides; the engine acts."""

    def plan(self, engine: "Engine") -> dict[int, LayerSpan]:
        """Who holds what from now on, by place in the pool. Asked at the start and when a node
        is missed or comes back."""

    def serving_changed(self, engine: "Engine") -> None:
        """Other nodes serve than before (`engine.spans()`)."""

    def route(self, engine: "Engine", request: "Request") -> tuple[Hop, ...] | None:
        """A chain with room, or None: the request waits."""

    def reserved(self, engine: "Engine", route: tuple[Hop, ...]) -> None:
        """KV was reserved along `route`."""

    def released(self, engine: "Engine", route: tuple[Hop, ...]) -> None:
        """KV was given back along `route`."""
