"""The gateway in virtual time: starts routes, hears tokens, counts what the client got."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.types import FinishReason, Reason, RequestId

if TYPE_CHECKING:
    from tests.sim.world import World

TOKENS_PER_LEG = 5


@dataclass(slots=True)
class Generation:
    """What the client has."""

    wanted: int
    generated: int = 0
    epoch: int = 0
    is_complete: bool = False
    is_ended: bool = False


class VirtualGateway:
    """Knows its generations and the routes it was told to open."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.generations: dict[RequestId, Generation] = {}

    def perform(self, effect: fx.RequestEffect) -> None:
        """An effect of the core."""
        match effect:
            case fx.OpenRoute():
                generation = self.generations[effect.request_id]
                assert effect.epoch > generation.epoch, "an epoch did not grow"
                generation.epoch = effect.epoch
                if generation.is_complete:
                    self.world.post_late(ev.RequestCancelled(request_id=effect.request_id))
                    return
                self._later(lambda: self._stage(effect, 0))
            case fx.CloseRoute():
                for stage in effect.route:
                    node = self.world.nodes[stage.node_id]

                    def close(node=node, effect=effect) -> None:  # type: ignore[no-untyped-def]
                        if node.is_up:
                            node.close_stage(effect.request_id, effect.epoch)

                    self._later(close)
            case fx.EndRequest():
                self.generations[effect.request_id].is_ended = True
            case _:
                pass

    def _later(self, action) -> None:  # type: ignore[no-untyped-def]
        self.world.clock.after(self.world.rng.expovariate(1 / self.world.faults.delay_ms), action)

    def _stage(self, route: fx.OpenRoute, index: int) -> None:
        """The opening travels from stage to stage."""
        node = self.world.nodes[route.route[index].node_id]
        if not node.is_running:
            self._lost(route, index)
            return
        why = node.open_stage(route, index)
        if why is not None:
            self._broke(route, index, why)
            return
        if index + 1 < len(route.route):
            self._later(lambda: self._stage(route, index + 1))
            return
        self.world.post_late(ev.RouteOpened(request_id=route.request_id, epoch=route.epoch))
        self.world.clock.after(
            self.world.rng.uniform(20, 800), lambda: self._tokens(route, is_first=True)
        )

    def _tokens(self, route: fx.OpenRoute, *, is_first: bool) -> None:
        """Some tokens come round the ring, if every stage still runs this epoch."""
        for index, stage in enumerate(route.route):
            node = self.world.nodes[stage.node_id]
            own = node.sequences.get(route.request_id) if node.is_up else None
            if not node.is_running or own is None or own[0] != route.epoch:
                self._lost(route, index)
                return
        last = self.world.nodes[route.route[-1].node_id]
        generation = self.generations[route.request_id]
        if not last.is_linked or generation.is_ended or generation.epoch != route.epoch:
            return
        if generation.is_complete:
            return
        if is_first:
            self.world.post_late(ev.FirstTokenSent(request_id=route.request_id, epoch=route.epoch))
        generation.generated = min(generation.wanted, generation.generated + TOKENS_PER_LEG)
        if generation.generated == generation.wanted:
            generation.is_complete = True
            self.world.post_late(
                ev.LastTokenSent(
                    request_id=route.request_id,
                    epoch=route.epoch,
                    finish_reason=FinishReason.LENGTH,
                    num_generated=generation.generated,
                )
            )
            return
        self.world.clock.after(
            self.world.rng.uniform(50, 600), lambda: self._tokens(route, is_first=False)
        )

    def _lost(self, route: fx.OpenRoute, index: int) -> None:
        """A stage is silent; its neighbour may or may not notice."""
        if self.world.rng.random() < self.world.faults.break_is_noticed:
            self._broke(route, index, "hop_broken")
        else:
            # The stall is seen in the end, by whoever waits for the next token.
            self.world.clock.after(8_000, lambda: self._broke(route, index, "stalled"))

    def _broke(self, route: fx.OpenRoute, index: int, why: str) -> None:
        self.world.post_late(
            ev.RouteBroke(
                request_id=route.request_id,
                epoch=route.epoch,
                node_id=route.route[index].node_id,
                reason=Reason(code=why, message=f"{route.route[index].node_id}: {why}"),
            )
        )
